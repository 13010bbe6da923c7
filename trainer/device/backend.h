/* backend.h: what a device must do for the trainer, apart from ops: memory, copies, order.
 *
 * Two backends: cpu (linked in) and cuda (a library loaded when a driver is present). Model, loss,
 * optimiser and step see only this and the op table.
 *
 * Dtypes on a device: `act` for activations and compute weights (CPU: real; CUDA: bf16), `acc` for
 * gradients, statistics, moments and master weights (CPU: real; CUDA: float). Integer arrays are
 * int32 unless said otherwise. */
#ifndef TESSERA_TRAINER_BACKEND_H
#define TESSERA_TRAINER_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/safetensors.h"
#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ops_table;
typedef struct device device;
typedef struct stream stream;

/* An ordered queue of work. The CPU's runs everything at once. Kernels find handles and device
 * facts through it. */
struct stream {
    device *dev;
    const struct ops_table *ops;
    void *handle; /* backend's own */
};

typedef struct backend_vtable {
    const char *name; /* "cpu", "cuda" */
    st_dtype act, acc;
    status (*open)(int index, int threads, device **out);
    void (*close)(device *d);
    /* Zeroed, aligned to 256. Only before step 1. */
    status (*alloc)(device *d, size_t bytes, void **out);
    void (*release)(device *d, void *p);
    status (*alloc_host)(device *d, size_t bytes, void **out); /* pinned where that exists */
    void (*release_host)(device *d, void *p);
    status (*stream_new)(device *d, stream **out);
    void (*stream_free)(stream **s);
    status (*to_device)(stream *s, void *dst, const void *src_host, size_t bytes);
    status (*to_host)(stream *s, void *dst_host, const void *src, size_t bytes);
    status (*copy)(stream *s, void *dst, const void *src, size_t bytes);
    status (*zero)(stream *s, void *dst, size_t bytes);
    status (*wait)(stream *s); /* until everything queued is done; reports late faults */
    status (*memory)(device *d, size_t *out_used, size_t *out_total);
    bool fixed_shapes; /* steps are captured: ops run on capacities, not on a batch's counts */
} backend_vtable;

struct device {
    const backend_vtable *v;
    const struct ops_table *ops;
    char description[128]; /* "NVIDIA H200", "CPU, 2 threads, AVX2" */
};

extern const backend_vtable backend_cpu;

/* kind: BACKEND_* of conf.h. cuda where wanted and absent: ST_UNAVAILABLE with the reason; auto
 * takes the CPU and says why in the log. */
WARN_UNUSED status device_open(int kind, int index, int threads, device **out);
void device_close(device **d);

#ifdef __cplusplus
}
#endif

#endif
