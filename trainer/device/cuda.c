/* cuda.c: a GPU as a device: memory, copies, streams, events and graphs through the CUDA runtime.
 *
 * This file is part of libtessera_cuda.so. The runtime is linked into that library statically and
 * finds the driver when it is first used. The ops are in ../ops/cuda. */
#include "trainer/device/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "common/program/log.h"
#include "trainer/device/cublas.h"
#include "trainer/device/cudnn.h"
#include "trainer/device/nvml.h"

extern const backend_vtable backend_cuda;

enum { LEAST_SM = 80 }; /* the first generation with bf16 products and asynchronous copies */

/* Scratch that was not reserved doubles; from SCRATCH_LARGE on it grows by an eighth. */
static const size_t SCRATCH_LEAST = (size_t)32 << 20, SCRATCH_LARGE = (size_t)256 << 20;

/* Makes `d` the runtime's current device, which is a setting of each thread. */
static status use(const device *d)
{
    int index = ((const cuda_device *)d)->options.index;
    CUDA_TRY(cudaSetDevice(index), ST_BAD_DEVICE, "cudaSetDevice");
    return ST_OK;
}

/* CUDA's error 35 has two causes, which the driver's version tells apart: it is 0 if there is no
 * driver at all. */
static status no_driver(void)
{
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return FAIL(ST_UNAVAILABLE, "CUDA: there is no NVIDIA driver on this machine (libcuda.so.1 "
                                    "is not found, or its module is not loaded)");
    cudaRuntimeGetVersion(&runtime);
    return FAIL(
        ST_UNAVAILABLE,
        "CUDA: the NVIDIA driver is too old: it supports CUDA up to %d.%d and this program was "
        "built with %d.%d; install a newer driver",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
}

static status find_gpu(const device_options *o, int *out_index)
{
    int count = 0, index = o->index;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver)
        return no_driver();
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
        return FAIL(
            ST_UNAVAILABLE,
            "CUDA: the driver is there, but it shows no GPU (is CUDA_VISIBLE_DEVICES empty?)");
    if (error != cudaSuccess)
        return FAIL(ST_UNAVAILABLE, "cudaGetDeviceCount: CUDA error %d, %s", (int)error,
                    cudaGetErrorString(error));
    if (o->share)
        index %= count;
    if (index < 0 || index >= count)
        return FAIL(ST_UNAVAILABLE,
                    "CUDA: there is no GPU %d; this machine has %d%s. Start one rank per GPU; with "
                    "comm.engine mpi, which goes through host memory, ranks may share a GPU",
                    index, count, count == 1 ? " GPU" : " GPUs");
    *out_index = index;
    return ST_OK;
}

/* Writes "GPU-" and the UUID, which no other GPU of any machine has. */
static void name_memory(const cudaUUID_t *uuid, char out[DEVICE_MEMORY_NAME])
{
    int used = snprintf(out, DEVICE_MEMORY_NAME, "GPU-");
    for (size_t i = 0; i < sizeof uuid->bytes; i++)
        used += snprintf(out + used, DEVICE_MEMORY_NAME - (size_t)used, "%02x",
                         (unsigned)(unsigned char)uuid->bytes[i]);
}

static status read_facts(cuda_device *d, struct cudaDeviceProp *p)
{
    CUDA_TRY(cudaGetDeviceProperties(p, d->options.index), ST_BAD_DEVICE,
             "cudaGetDeviceProperties");
    d->facts = (cuda_facts){.sm = 10 * p->major + p->minor,
                            .multiprocessors = p->multiProcessorCount,
                            .shared_bytes = (int)p->sharedMemPerBlockOptin,
                            .l2_bytes = p->l2CacheSize};
    d->base.multiprocessors = p->multiProcessorCount;
    name_memory(&p->uuid, d->base.memory_name);
    if (d->facts.sm < LEAST_SM)
        return FAIL(
            ST_UNAVAILABLE,
            "CUDA: GPU %d (%.100s) has compute capability %d.%d; the kernels need %d.%d or later",
            d->options.index, p->name, p->major, p->minor, LEAST_SM / 10, LEAST_SM % 10);
    return ST_OK;
}

static void cuda_close(device *base)
{
    cuda_device *d = (cuda_device *)base;
    for (int i = 0; i < KEPT_COUNT; i++)
        if (d->kept[i].data)
            d->kept[i].done(d->kept[i].data);
    free(d);
}

/* Decides whose attention kernels this device uses, and writes the choice to `out` for the device's
 * description. */
static status choose_attention(cuda_device *d, char *out, size_t size)
{
    int wanted = d->options.attention;
    d->cudnn = wanted != ATTENTION_PORTABLE && cudnn_open() == ST_OK;
    if (d->cudnn || wanted == ATTENTION_PORTABLE) {
        snprintf(out, size, "%s", d->cudnn ? "cuDNN" : "our own kernels");
        return ST_OK;
    }
    if (wanted == ATTENTION_CUDNN)
        return status_context(ST_UNAVAILABLE, "training.attention cudnn");
    log_warn("attention uses our own kernels reason=\"%s\"", status_text());
    snprintf(out, size, "our own kernels (%s)", status_text());
    status_clear();
    return ST_OK;
}

/* Makes the context and measures its size: how much less memory the GPU has after it. */
static status make_context(cuda_device *d)
{
    char bus[32];
    size_t before = 0, after = 0;
    CUDA_TRY(cudaDeviceGetPCIBusId(bus, sizeof bus, d->options.index), ST_BAD_DEVICE,
             "cudaDeviceGetPCIBusId");
    bool known = nvml_free_bytes(bus, &before) == ST_OK;
    TRY(use(&d->base));
    CUDA_TRY(cudaFree(NULL), ST_BAD_DEVICE, "cudaFree, the first call that needs a context");
    known = known && nvml_free_bytes(bus, &after) == ST_OK;
    if (!known) {
        log_info("the memory of the CUDA context cannot be measured reason=\"%s\"", status_text());
        status_clear();
    }
    d->base.context_bytes = known && before > after ? before - after : 0;
    return ST_OK;
}

static status cuda_open(const device_options *o, device **out)
{
    char attention[256];
    int index;
    TRY(find_gpu(o, &index));
    TRY(cublas_open());
    struct cudaDeviceProp p;
    cuda_device *d = calloc(1, sizeof *d);
    if (!d)
        return FAIL(ST_NO_MEMORY, "out of memory while the CUDA device was opened");
    d->base.backend = &backend_cuda;
    d->options = *o;
    d->options.index = index;
    status st = read_facts(d, &p);
    if (st == ST_OK)
        st = choose_attention(d, attention, sizeof attention);
    if (st == ST_OK)
        st = make_context(d);
    if (st != ST_OK) {
        cuda_close(&d->base);
        return st;
    }
    snprintf(d->base.description, sizeof d->base.description,
             "%.100s, sm_%d, %d multiprocessors, attention by %s", p.name, d->facts.sm,
             d->facts.multiprocessors, attention);
    *out = &d->base;
    return ST_OK;
}

static status cuda_alloc(device *d, size_t bytes, void **out)
{
    TRY(use(d));
    d->counts.allocations++;
    void *p = NULL;
    /* cudaMalloc aligns to 256 bytes or more. */
    cudaError_t error = cudaMalloc(&p, bytes ? bytes : 1);
    if (error != cudaSuccess)
        return FAIL(ST_NO_MEMORY, "out of memory on %s: cudaMalloc of %zu bytes: CUDA error %d, %s",
                    d->description, bytes, (int)error, cudaGetErrorString(error));
    /* cudaMemset may return before it is done, and our own streams do not wait for the legacy
     * stream that it runs on, so wait here. */
    error = cudaMemset(p, 0, bytes);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(cudaStreamLegacy);
    if (error != cudaSuccess) {
        cudaFree(p);
        return FAIL(ST_BAD_DEVICE, "cudaMemset of %zu bytes: CUDA error %d, %s", bytes, (int)error,
                    cudaGetErrorString(error));
    }
    *out = p;
    return ST_OK;
}

static void cuda_release(device *d, void *p)
{
    (void)d;
    cudaFree(p);
}

static status cuda_alloc_host(device *d, size_t bytes, void **out)
{
    TRY(use(d));
    d->counts.allocations++;
    void *p = NULL;
    CUDA_TRY(cudaMallocHost(&p, bytes ? bytes : 1), ST_NO_MEMORY,
             "cudaMallocHost of pinned memory");
    memset(p, 0, bytes);
    *out = p;
    return ST_OK;
}

static void cuda_release_host(device *d, void *p)
{
    (void)d;
    cudaFreeHost(p);
}

static status cuda_stream_new(device *d, stream **out)
{
    TRY(use(d));
    cuda_stream *s = calloc(1, sizeof *s);
    if (!s)
        return FAIL(ST_NO_MEMORY, "out of memory for a stream");
    cudaStream_t handle = NULL;
    cudaError_t error = cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        free(s);
        return FAIL(ST_BAD_DEVICE, "cudaStreamCreate: CUDA error %d, %s", (int)error,
                    cudaGetErrorString(error));
    }
    s->base = (stream){.dev = d, .ops = d->ops, .handle = handle};
    *out = &s->base;
    return ST_OK;
}

static void cuda_stream_free(stream **held)
{
    cuda_stream *s = (cuda_stream *)*held;
    if (!s)
        return;
    cudaStreamSynchronize(cuda_handle(&s->base));
    for (int i = 0; i < s->blocks; i++)
        cudaFree(s->block[i]);
    cudaStreamDestroy(cuda_handle(&s->base));
    free(s);
    *held = NULL;
}

static status queue_copy(stream *s, void *dst, const void *src, size_t bytes,
                         enum cudaMemcpyKind kind)
{
    if (bytes)
        CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, kind, cuda_handle(s)), ST_BAD_DEVICE,
                 "cudaMemcpyAsync");
    return ST_OK;
}

static status cuda_to_device(stream *s, void *dst, const void *src_host, size_t bytes)
{
    return queue_copy(s, dst, src_host, bytes, cudaMemcpyHostToDevice);
}

static status cuda_to_host(stream *s, void *dst_host, const void *src, size_t bytes)
{
    return queue_copy(s, dst_host, src, bytes, cudaMemcpyDeviceToHost);
}

static status cuda_copy(stream *s, void *dst, const void *src, size_t bytes)
{
    return queue_copy(s, dst, src, bytes, cudaMemcpyDeviceToDevice);
}

static status cuda_zero(stream *s, void *dst, size_t bytes)
{
    if (bytes)
        CUDA_TRY(cudaMemsetAsync(dst, 0, bytes, cuda_handle(s)), ST_BAD_DEVICE, "cudaMemsetAsync");
    return ST_OK;
}

static status synchronize(stream *s)
{
    CUDA_TRY(cudaStreamSynchronize(cuda_handle(s)), ST_BAD_DEVICE,
             "work queued on the GPU, seen at cudaStreamSynchronize");
    return ST_OK;
}

static status cuda_wait(stream *s)
{
    s->dev->counts.waits++;
    device_wait_begins(s->dev);
    return device_wait_ended(s->dev, synchronize(s));
}

static status cuda_event_new(device *d, event **out)
{
    TRY(use(d));
    cudaEvent_t e = NULL;
    CUDA_TRY(cudaEventCreate(&e), ST_BAD_DEVICE, "cudaEventCreate");
    *out = (event *)e;
    return ST_OK;
}

static void cuda_event_free(event **e)
{
    if (*e)
        cudaEventDestroy((cudaEvent_t)*e);
    *e = NULL;
}

static status cuda_event_record(stream *s, event *e)
{
    CUDA_TRY(cudaEventRecord((cudaEvent_t)e, cuda_handle(s)), ST_BAD_DEVICE, "cudaEventRecord");
    return ST_OK;
}

static status cuda_event_follow(stream *s, event *e)
{
    CUDA_TRY(cudaStreamWaitEvent(cuda_handle(s), (cudaEvent_t)e, 0), ST_BAD_DEVICE,
             "cudaStreamWaitEvent");
    return ST_OK;
}

static status synchronize_event(event *e)
{
    CUDA_TRY(cudaEventSynchronize((cudaEvent_t)e), ST_BAD_DEVICE,
             "work queued on the GPU, seen at cudaEventSynchronize");
    return ST_OK;
}

static status cuda_event_wait(device *d, event *e)
{
    d->counts.event_waits++;
    device_wait_begins(d);
    return device_wait_ended(d, synchronize_event(e));
}

static status cuda_event_ns(event *from, event *to, int64_t *out_ns)
{
    float ms = 0;
    CUDA_TRY(cudaEventElapsedTime(&ms, (cudaEvent_t)from, (cudaEvent_t)to), ST_BAD_DEVICE,
             "cudaEventElapsedTime");
    *out_ns = (int64_t)((double)ms * 1e6);
    return ST_OK;
}

/* In the mode "thread local", this thread may not call what would break the capture (allocations,
 * waits), but other threads may. The receiver's thread uses no GPU. */
static status cuda_capture_begin(stream *s)
{
    CUDA_TRY(cudaStreamBeginCapture(cuda_handle(s), cudaStreamCaptureModeThreadLocal),
             ST_BAD_DEVICE, "cudaStreamBeginCapture");
    ((cuda_stream *)s)->capturing = true;
    return ST_OK;
}

static status cuda_capture_end(stream *s, graph **out)
{
    *out = NULL;
    cudaGraph_t shape = NULL;
    cudaGraphExec_t ready = NULL;
    ((cuda_stream *)s)->capturing = false;
    s->dev->counts.captures++;
    CUDA_TRY(cudaStreamEndCapture(cuda_handle(s), &shape), ST_BAD_DEVICE,
             "cudaStreamEndCapture: some call in the captured step waited or allocated");
    cudaError_t error = cudaGraphInstantiate(&ready, shape, 0);
    cudaGraphDestroy(shape);
    CUDA_TRY(error, ST_BAD_DEVICE, "cudaGraphInstantiate");
    *out = (graph *)ready;
    return ST_OK;
}

static status cuda_graph_launch(stream *s, graph *g)
{
    CUDA_TRY(cudaGraphLaunch((cudaGraphExec_t)g, cuda_handle(s)), ST_BAD_DEVICE, "cudaGraphLaunch");
    return ST_OK;
}

static void cuda_graph_free(graph **g)
{
    if (*g)
        cudaGraphExecDestroy((cudaGraphExec_t)*g);
    *g = NULL;
}

/* The memory of the whole GPU, other processes included. */
static status cuda_memory(device *d, size_t *out_used, size_t *out_total)
{
    TRY(use(d));
    size_t unused = 0;
    CUDA_TRY(cudaMemGetInfo(&unused, out_total), ST_BAD_DEVICE, "cudaMemGetInfo");
    *out_used = *out_total - unused;
    return ST_OK;
}

static status cuda_available(device *d, size_t *out)
{
    TRY(use(d));
    size_t total;
    CUDA_TRY(cudaMemGetInfo(out, &total), ST_BAD_DEVICE, "cudaMemGetInfo");
    return ST_OK;
}

const cuda_facts *cuda_facts_of(const stream *s)
{
    return &((const cuda_device *)s->dev)->facts;
}

/* Adds a block of scratch that is larger than those before. */
static status add_scratch(cuda_stream *s, size_t size)
{
    TRY(cuda_alloc(s->base.dev, size, &s->block[s->blocks]));
    s->block_bytes = size;
    s->base.dev->counts.scratch += (int64_t)size;
    s->blocks++;
    return ST_OK;
}

static status cuda_reserve(stream *base, size_t bytes)
{
    cuda_stream *s = (cuda_stream *)base;
    return bytes > s->block_bytes ? add_scratch(s, bytes) : ST_OK;
}

static size_t grow_size(size_t now, size_t wanted)
{
    size_t more = now < SCRATCH_LARGE ? 2 * now : now + now / 8;
    more = more > SCRATCH_LEAST ? more : SCRATCH_LEAST;
    return more > wanted ? more : wanted;
}

status cuda_scratch(stream *base, size_t bytes, void **out)
{
    cuda_stream *s = (cuda_stream *)base;
    if (bytes > s->block_bytes) {
        if (s->capturing || s->blocks == CUDA_SCRATCH_BLOCKS)
            return FAIL(
                ST_INTERNAL,
                "an op needs %zu bytes of scratch while a step is captured, and only %zu are "
                "there: this shape did not run before the capture",
                bytes, s->block_bytes);
        TRY(add_scratch(s, grow_size(s->block_bytes, bytes)));
    }
    *out = s->blocks ? s->block[s->blocks - 1] : NULL;
    return ST_OK;
}

const backend_vtable backend_cuda = {
    .name = "cuda",
    .act = DT_BF16,
    .acc = DT_F32,
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .alloc_host = cuda_alloc_host,
    .release_host = cuda_release_host,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .to_device = cuda_to_device,
    .to_host = cuda_to_host,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .wait = cuda_wait,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_follow = cuda_event_follow,
    .event_wait = cuda_event_wait,
    .event_ns = cuda_event_ns,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .memory = cuda_memory,
    .available = cuda_available,
    .reserve = cuda_reserve,
    .overhead = true,
    .fixed_shapes = true,
    .ahead = 1,
};
