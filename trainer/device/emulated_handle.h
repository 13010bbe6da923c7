/* emulated_handle.h: the streams of a device that the host stands in for (tests/emulated,
 * shapes.h), as a library sees them that has kernels of its own (parallel/nccl_double). */
#ifndef TESSERA_TRAINER_DEVICE_EMULATED_HANDLE_H
#define TESSERA_TRAINER_DEVICE_EMULATED_HANDLE_H

#include <stdbool.h>

/* What a stream's handle is, which the library queues its kernels with.
 * poll(work, first) is called until it is true, `first` at the first call of each time that the
 * work runs; work must stay. False: no memory. add NULL: the device has no queue and no storage,
 * and this is the beginning of a shapes_handle. */
typedef struct emulated_handle {
    int number; /* of the stream on its device */
    void *stream;
    bool (*add)(struct emulated_handle *h, bool (*poll)(void *work, bool first), void *work);
    const void *(*capture)(const struct emulated_handle *h); /* graph under way, NULL: none */
} emulated_handle;

#endif
