/* backend.h: what a device must do for the trainer, apart from ops: memory, copies, order.
 *
 * Two backends: cpu (linked in) and cuda (a library loaded when a driver is present). Model, loss,
 * optimiser and step see only this and the op table.
 *
 * Dtypes on a device: `act` for activations and compute weights (CPU: real; CUDA: bf16), `acc` for
 * gradients, statistics, moments and master weights (CPU: real; CUDA: float). Integer arrays are
 * int32 unless said otherwise. */
#ifndef TESSERA_TRAINER_DEVICE_BACKEND_H
#define TESSERA_TRAINER_DEVICE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/model_folder/safetensors.h"
#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ops_table;
typedef struct device device;
typedef struct stream stream;
typedef struct event event; /* a point in the order of a stream */
typedef struct graph graph; /* captured work, to be queued again as a whole */

/* Told of what is queued on a stream and is no op and no copy of its own: a collective, or a wait
 * for one on another stream. Pairs may nest; between them stands all that it queues. what: its
 * name, static storage; NULL: that of the first inside. */
typedef struct call_watch {
    status (*begin)(stream *s, const char *what);
    status (*end)(stream *s);
} call_watch;

/* An ordered queue of work. The CPU's runs everything at once. Kernels find handles and device
 * facts through it. */
struct stream {
    device *dev;
    const struct ops_table *ops;
    void *handle;          /* backend's own; cuda: the cudaStream_t */
    struct replay *replay; /* of graph_replay.h; NULL: nothing is captured */
    int part;              /* PART_*: what is being queued, for report/profile.h */
};

enum { PART_TEXT, PART_MOE, PART_VISION, PART_HEAD, PART_OPTIMIZER };

typedef struct device_options {
    int index;          /* which GPU */
    bool share;         /* of fewer GPUs than that, index modulo their number */
    int threads;        /* of the CPU's pool; 0 = one per processor this process may use */
    int attention;      /* ATTENTION_* of conf.h: whose kernels, cuda only */
    bool deterministic; /* library paths that give the same bits every time */
    size_t memory; /* of a device of shapes: what it says it has; 0: more than anything takes */
} device_options;

/* What a step must not do, counted since the device was opened. */
typedef struct device_counts {
    int64_t allocations; /* device and pinned memory, scratch that grows, library plans */
    int64_t waits;       /* the host waited for all of a stream */
    int64_t event_waits; /* the host waited for an event */
    int64_t captures;    /* graphs made */
    int64_t scratch;     /* bytes of device memory that ops work in, all that it grew to */
} device_counts;

typedef struct backend_vtable {
    const char *name; /* "cpu", "cuda" */
    st_dtype act, acc;
    status (*open)(const device_options *o, device **out); /* without its ops */
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
    /* Order between streams, and the host's only other way to wait. */
    status (*event_new)(device *d, event **out);
    void (*event_free)(event **e);
    status (*event_record)(stream *s, event *e); /* e: behind all that is queued on s so far */
    status (*event_follow)(stream *s,
                           event *e);          /* what is queued on s from here on runs behind e */
    status (*event_wait)(device *d, event *e); /* as wait, for what e stands behind */
    /* Device time between two events that were waited for. */
    status (*event_ns)(event *from, event *to, int64_t *out_ns);
    /* Work queued between begin and end is kept, not run; NULL where the backend has no graphs.
     * Between them nothing may allocate or wait, and host memory must outlive the graph. */
    status (*capture_begin)(stream *s);
    status (*capture_end)(stream *s, graph **out); /* also after a call that failed */
    status (*graph_launch)(stream *s, graph *g);
    void (*graph_free)(graph **g);
    status (*memory)(device *d, size_t *out_used, size_t *out_total);
    /* One block of this size for what ops work in, before step 1; NULL where they need none. */
    status (*reserve)(stream *s, size_t bytes);
    bool overhead;  /* memory is a GPU's own: its driver, libraries and graphs take some of it */
    bool immediate; /* device memory is the host's, and a call has done its work when it returns */
    /* Device memory has addresses and no storage: what is written there is gone, and what is read
     * from there is zero (device/shapes.h). Pinned memory is real. */
    bool no_storage;
    bool fixed_shapes; /* steps are captured: ops run on capacities, not on a batch's counts */
    int ahead;         /* steps that may be queued before the host reads what the first one did */
} backend_vtable;

/* Told of every wait of the host for the device. What `ended` returns is what the wait returns: of
 * one that ended because the work was given up, why. Functions NULL: nobody is. */
typedef struct device_watch {
    void *context;
    void (*begins)(void *context);
    status (*ended)(void *context, status how);
} device_watch;

struct device {
    const backend_vtable *v;
    const struct ops_table *ops;
    device_counts counts;
    device_watch watch;
    const call_watch *calls; /* of all its streams; NULL: nobody is told */
    size_t used_at_open;     /* of memory(), the context and what others hold included */
    size_t context_bytes;    /* of it the context's, as measured; 0: nobody could tell */
    char description[512];   /* "NVIDIA H200, ..", "CPU, 2 threads, AVX2" */
    char no_gpu[512];        /* why this is the CPU where a GPU was looked for; "" otherwise */
};

/* Does device memory hold what is written to it? Where it does not, moving values is time wasted.
 */
static inline bool device_has_storage(const device *d)
{
    return !d->v->no_storage;
}

/* Around a backend's waits. */
static inline void device_wait_begins(device *d)
{
    if (d->watch.begins)
        d->watch.begins(d->watch.context);
}

static inline status device_wait_ended(device *d, status how)
{
    return d->watch.ended ? d->watch.ended(d->watch.context, how) : how;
}

/* Around what a call_watch is told of. */
static inline status device_call_begins(stream *s, const char *what)
{
    return s->dev->calls ? s->dev->calls->begin(s, what) : ST_OK;
}

static inline status device_call_ended(stream *s)
{
    return s->dev->calls ? s->dev->calls->end(s) : ST_OK;
}

extern const backend_vtable backend_cpu;

/* Of one that device_open (ops/open.h) has opened. */
static inline void device_close(device **d)
{
    if (!*d)
        return;
    (*d)->v->close(*d);
    *d = NULL;
}

#ifdef __cplusplus
}
#endif

#endif
