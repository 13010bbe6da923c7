/* SPDX-License-Identifier: Apache-2.0 */
/* emulated_handle.h: the handle of a stream whose device the host stands in for: the emulated
 * device and the device of shapes (tests/dry_run/shapes.h).
 *
 * tests/nccl/double is a library that poses as NCCL. It has kernels of its own to queue, so it
 * needs a handle with which the device can queue them. */
#ifndef TESSERA_TESTS_EMULATED_HANDLE_H
#define TESSERA_TESTS_EMULATED_HANDLE_H

#include <stdbool.h>

/* What stream.handle points to on such a device. add: queues work that the library provides.
 * `poll(work, first)` is called until it returns true; `first` is true at the first call of each
 * run, since a graph runs the work again. `drop(work)` is called when a graph that holds the work
 * is freed. `work` must stay valid. Returns false if memory runs out. NULL: the device has neither
 * a queue nor storage, and this struct is the beginning of a shapes_handle. capture: the graph that
 * is being captured on the stream, or NULL. */
typedef struct emulated_handle {
    int number; /* the stream's number on its device */
    void *stream;
    bool (*add)(struct emulated_handle *whole, bool (*poll)(void *work, bool first),
                void (*drop)(void *work), void *work);
    const void *(*capture)(const struct emulated_handle *whole);
} emulated_handle;

#endif
