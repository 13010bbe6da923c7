/* SPDX-License-Identifier: Apache-2.0 */
/* backend.h: what a device must do for the trainer, apart from the ops: memory, copies, and the
 * order in which queued work runs.
 *
 * Model, loss, optimiser and step see only this interface and the op table (ops/table.h), so the
 * same code runs on every device. There are two backends: cpu (linked in) and cuda (a library that
 * is loaded when a run wants a GPU). Tests add two: tests/emulated queues work like a GPU and runs
 * it on the host, and tests/dry_run has addresses without memory.
 *
 * Arrays on a device have one of two floating-point types. `act` is the type of activations and of
 * the weights that products read (CPU: real, CUDA: bf16). `acc` is the type of gradients,
 * statistics, moments and master weights (CPU: real, CUDA: float). Integer arrays are int32 unless
 * their contract says otherwise.
 *
 * Ownership: what `open`, `alloc`, `stream_new`, `event_new` and `capture_end` return belongs to
 * the caller, who gives it back with the matching call before the device is closed.
 *
 * Errors: NO_MEMORY if host or device memory runs out; BAD_DEVICE if the driver or the GPU
 * fails. A GPU works after the call has returned, so its failure may be reported by any later call,
 * at the latest by `wait` or `event_wait`. */
#ifndef TESSERA_TRAINER_DEVICE_BACKEND_H
#define TESSERA_TRAINER_DEVICE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/model_folder/safetensors.h"
#include "common/base/status.h"
#include "trainer/device/choices.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ops_table;
typedef struct device device;
typedef struct stream stream;
typedef struct event event; /* a point in the order of a stream */
typedef struct graph graph; /* work captured once, to be queued again as a whole */

/* Functions that are called around work which is neither an op nor a copy of the backend: a
 * collective, or a wait for one on another stream. The profiler uses them to time that work
 * (report/profile.h). Pairs may nest; everything the pair queues lies between its two calls. `what`
 * is the work's name in static storage. NULL means that the name is the one the first nested pair
 * gives. */
typedef struct call_watch {
    status (*begin)(stream *stream, const char *what);
    status (*end)(stream *stream);
} call_watch;

/* An ordered queue of work. A stream of the CPU runs each piece before the call returns. Ops find
 * the backend's handle and facts about the device through it. */
struct stream {
    device *dev;
    const struct ops_table *ops;
    void *handle;          /* the backend's own; on CUDA the cudaStream_t */
    struct replay *replay; /* see graph_replay.h; NULL: nothing is captured */
    int part;              /* PART_*: the part of the model that queues now, for report/profile.h */
};

enum { PART_TEXT, PART_MOE, PART_VISION, PART_HEAD, PART_OPTIMIZER };

/* Ends the description of a GPU that was opened with `collectives`. */
#define DEVICE_BESIDE_COLLECTIVES ", beside collectives"

typedef struct device_options {
    int index;          /* which GPU, from 0 */
    bool share;         /* if there are fewer GPUs, take `index` modulo their number */
    int threads;        /* threads of the CPU's pool; 0: one per processor this process may use */
    int attention;      /* ATTENTION_* of conf.h: whose attention kernels; CUDA only */
    int experts;        /* EXPERTS_* of conf.h: which kernel of the experts' products; CUDA only */
    bool deterministic; /* use only library paths that give the same bits every time */
    bool collectives;   /* kernels of collectives run beside the ops; CUDA only */
    int host_ranks; /* ranks of the job on this machine, each with a process; 0: this one alone */
} device_options;

/* Counts of what a step must not do once it is warm, since the device was opened. Tests and the
 * report read them. */
typedef struct device_counts {
    /* Allocations of device or pinned memory, growth of scratch, library plans made. */
    int64_t allocations;
    int64_t waits;             /* times that the host waited for all of a stream */
    int64_t event_waits;       /* times that the host waited for an event */
    int64_t captures;          /* graphs captured */
    int64_t library_attention; /* calls of attention that a library has done, and not our kernels */
    int64_t scratch;           /* bytes of device memory in all scratch blocks of ops */
} device_counts;

typedef struct backend_vtable {
    const char *name; /* "cpu", "cuda" */
    st_dtype act, acc;
    /* The device without its op table; device_open (ops/open.h) adds that. */
    status (*open)(const device_options *options, device **out);
    void (*close)(device *device);
    /* alloc: zeroed memory, aligned to 256 bytes. alloc_host: zeroed host memory, pinned if the
     * backend knows pinning. Both are for the time before step 1; a step allocates nothing. */
    status (*alloc)(device *device, size_t bytes, void **out);
    void (*release)(device *device, void *array);
    status (*alloc_host)(device *device, size_t bytes, void **out);
    void (*release_host)(device *device, void *array);
    /* Host memory for arrays that are kept there and copied to the device only while in use:
     * zeroed, pinned, aligned to 256 bytes, and legal as the device's side of every copy. NULL: the
     * memory of alloc_host is like that already. See device_host_array. */
    status (*host_array)(device *device, size_t bytes, void **out);
    void (*release_host_array)(device *device, void *array);
    /* Makes host memory that the caller has mapped as fast to copy from and to as that of
     * alloc_host, until unpin. It begins and ends on a page. NULL: the backend knows no pinning. */
    status (*pin)(device *device, void *memory, size_t bytes);
    void (*unpin)(device *device, void *memory);
    status (*stream_new)(device *device, stream **out);
    /* The same, for a stream whose kernels go first when a multiprocessor has room, for transfers
     * that other work waits for. NULL: the backend has no priorities. See device_urgent_stream. */
    status (*urgent_stream_new)(device *device, stream **out);
    void (*stream_free)(stream **stream);
    /* Copies, and clearing to zero. They are queued; host memory must stay as it is until the
     * stream has got there. 0 bytes are legal. */
    status (*to_device)(stream *stream, void *dst, const void *src_host, size_t bytes);
    status (*to_host)(stream *stream, void *dst_host, const void *src, size_t bytes);
    status (*copy)(stream *stream, void *dst, const void *src, size_t bytes);
    status (*zero)(stream *stream, void *dst, size_t bytes);
    /* Waits until all queued work is done, and reports faults that came late. */
    status (*wait)(stream *stream);
    /* Events order work between streams, and are the host's only way to wait for part of a stream.
     * event_record puts the event after all that is queued on the stream so far; event_follow makes
     * what is queued on the stream from now on run after the event; event_wait blocks the host
     * until the event has passed. */
    status (*event_new)(device *device, event **out);
    void (*event_free)(event **event);
    status (*event_record)(stream *stream, event *event);
    status (*event_follow)(stream *stream, event *event);
    status (*event_wait)(device *device, event *event);
    /* Device time in nanoseconds between two events that have passed. */
    status (*event_ns)(event *from, event *to, int64_t *out_ns);
    /* Work that is queued between capture_begin and capture_end is recorded and not run. In between
     * nothing may allocate or wait, and host memory that a copy names must outlive the graph. NULL
     * if the backend has no graphs. capture_end must also be called after a failure in between;
     * it then returns a failure or a graph that the caller frees. */
    status (*capture_begin)(stream *stream);
    status (*capture_end)(stream *stream, graph **out);
    status (*graph_launch)(stream *stream, graph *graph);
    void (*graph_free)(graph **graph);
    /* Bytes in use and bytes in all: on CUDA of the whole GPU, other processes included; on the CPU
     * this process's resident memory and what the machine or a cgroup gives it. */
    status (*memory)(device *device, size_t *out_used, size_t *out_total);
    /* Bytes that this process could still take: what neither it nor another process holds. On the
     * CPU no more than the kernel says is available, or a cgroup leaves. */
    status (*available)(device *device, size_t *out);
    /* Takes one block of scratch of this size before step 1, so that ops need not grow it. NULL
     * if ops need none. */
    status (*reserve)(stream *stream, size_t bytes);
    bool overhead;  /* the memory is a GPU's own: driver, libraries and graphs take a share of it */
    bool immediate; /* device memory is host memory, and a call has done its work when it returns */
    /* Steps are captured, so ops run on capacities and not on a batch's counts. */
    bool fixed_shapes;
    /* How many steps may be queued before the host reads the results of the first. */
    int ahead;
} backend_vtable;

/* Functions that are called around every wait of the host for the device, so that a rank notices
 * while it waits that another one has failed. `how` is the wait's own result; the wait returns what
 * `ended` returns, which is the reason if the work was given up. NULL functions are not called.
 */
typedef struct device_watch {
    void *context;
    void (*begins)(void *context);
    status (*ended)(void *context, status how);
} device_watch;

enum { DEVICE_MEMORY_NAME = 640 };

struct device {
    const backend_vtable *backend;
    const struct ops_table *ops;
    device_counts counts;
    device_watch watch;
    const call_watch *calls; /* for all of its streams; NULL: no calls */
    device_choices choices;
    /* What memory() said when the device was opened, which includes the context and other
     * processes. */
    size_t used_at_open;
    /* The part of it that the context takes, as measured; 0: could not be measured. */
    size_t context_bytes;
    int host_ranks;      /* ranks of the job that share the machine's CPUs, this one among them */
    int multiprocessors; /* of a GPU; its context takes more memory the more of them it has */
    /* Names the memory that its arrays lie in, so that ranks can tell whether they share it. "": it
     * is shared with none. */
    char memory_name[DEVICE_MEMORY_NAME];
    char description[512]; /* "NVIDIA H200, ..", "CPU, 2 threads, AVX2" */
    char no_gpu[512];      /* why this is the CPU although a GPU was looked for; "" otherwise */
};

static inline WARN_UNUSED status device_host_array(device *dev, size_t bytes, void **out)
{
    const backend_vtable *backend = dev->backend;
    return (backend->host_array ? backend->host_array : backend->alloc_host)(dev, bytes, out);
}

static inline void device_release_host_array(device *dev, void *array)
{
    const backend_vtable *backend = dev->backend;
    (backend->host_array ? backend->release_host_array : backend->release_host)(dev, array);
}

/* A backend calls this pair around each of its waits. */
static inline void device_wait_begins(device *dev)
{
    if (dev->watch.begins)
        dev->watch.begins(dev->watch.context);
}

static inline status device_wait_ended(device *dev, status how)
{
    return dev->watch.ended ? dev->watch.ended(dev->watch.context, how) : how;
}

/* The code that queues a collective calls this pair around it (see call_watch). */
static inline status device_call_begins(stream *queue, const char *what)
{
    return queue->dev->calls ? queue->dev->calls->begin(queue, what) : ST_OK;
}

static inline status device_call_ended(stream *queue)
{
    return queue->dev->calls ? queue->dev->calls->end(queue) : ST_OK;
}

extern const backend_vtable backend_cpu;

/* Closes a device that device_open (ops/open.h) has opened; its streams, events and memory must be
 * gone. *dev becomes NULL. */
static inline void device_close(device **dev)
{
    if (!*dev)
        return;
    (*dev)->backend->close(*dev);
    *dev = NULL;
}

#ifdef __cplusplus
}
#endif

/* A stream for urgent transfers; an ordinary one if the backend has no priorities. */
static inline WARN_UNUSED status device_urgent_stream(device *dev, stream **out)
{
    const backend_vtable *backend = dev->backend;
    return (backend->urgent_stream_new ? backend->urgent_stream_new : backend->stream_new)(dev,
                                                                                           out);
}

#endif
