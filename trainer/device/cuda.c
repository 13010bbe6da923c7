/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.c: a GPU as a device: memory, copies, streams, events and graphs through the CUDA runtime.
 *
 * This file is part of libtessera_cuda.so. The runtime is linked into that library statically and
 * finds the driver when it is first used. The ops are in ../ops/cuda. */
#include "trainer/device/cuda_device.h"

#include <stdlib.h>
#include <string.h>

extern const backend_vtable backend_cuda;

/* Scratch that was not reserved doubles; from SCRATCH_LARGE on it grows by an eighth. */
static const size_t SCRATCH_LEAST = (size_t)32 << 20, SCRATCH_LARGE = (size_t)256 << 20;

/* Makes `dev` the runtime's current device, which is a setting of each thread. */
static status use(const device *dev)
{
    int index = ((const cuda_device *)dev)->options.index;
    CUDA_TRY(cudaSetDevice(index), ST_BAD_DEVICE, "cudaSetDevice");
    return ST_OK;
}

static status cuda_open(const device_options *options, device **out)
{
    cuda_device *cuda;
    TRY(cuda_open_gpu(options, &cuda));
    cuda->base.backend = &backend_cuda;
    *out = &cuda->base;
    return ST_OK;
}

static void cuda_close(device *base)
{
    cuda_free((cuda_device *)base);
}

static status cuda_alloc(device *dev, size_t bytes, void **out)
{
    TRY(use(dev));
    dev->counts.allocations++;
    void *array = NULL;
    /* cudaMalloc aligns to 256 bytes or more. */
    cudaError_t error = cudaMalloc(&array, bytes ? bytes : 1);
    if (error != cudaSuccess)
        return FAIL(ST_NO_MEMORY, "out of memory on %s: cudaMalloc of %zu bytes: CUDA error %d, %s",
                    dev->description, bytes, (int)error, cudaGetErrorString(error));
    /* cudaMemset may return before it is done, and our own streams do not wait for the legacy
     * stream that it runs on, so wait here. */
    error = cudaMemset(array, 0, bytes);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(cudaStreamLegacy);
    if (error != cudaSuccess) {
        cudaFree(array);
        return FAIL(ST_BAD_DEVICE, "cudaMemset of %zu bytes: CUDA error %d, %s", bytes, (int)error,
                    cudaGetErrorString(error));
    }
    *out = array;
    return ST_OK;
}

static void cuda_release(device *dev, void *array)
{
    (void)dev;
    cudaFree(array);
}

static status cuda_alloc_host(device *dev, size_t bytes, void **out)
{
    TRY(use(dev));
    dev->counts.allocations++;
    void *array = NULL;
    CUDA_TRY(cudaMallocHost(&array, bytes ? bytes : 1), ST_NO_MEMORY,
             "cudaMallocHost of pinned memory");
    memset(array, 0, bytes);
    *out = array;
    return ST_OK;
}

static void cuda_release_host(device *dev, void *array)
{
    (void)dev;
    cudaFreeHost(array);
}

static status cuda_host_array(device *dev, size_t bytes, void **out)
{
    void *array = NULL;
    TRY(use(dev));
    dev->counts.allocations++;
    cudaError_t error = cudaMallocHost(&array, bytes ? bytes : 1);
    if (error != cudaSuccess)
        return FAIL(ST_NO_MEMORY,
                    "the host has no %zu bytes of pinned memory for arrays of the device "
                    "(memory.host): CUDA error %d, %s",
                    bytes, (int)error, cudaGetErrorString(error));
    memset(array, 0, bytes);
    ((cuda_device *)dev)->host_arrays = true;
    *out = array;
    return ST_OK;
}

static status cuda_pin(device *dev, void *memory, size_t bytes)
{
    TRY(use(dev));
    dev->counts.allocations++;
    CUDA_TRY(cudaHostRegister(memory, bytes, cudaHostRegisterDefault), ST_NO_MEMORY,
             "cudaHostRegister");
    return ST_OK;
}

static void cuda_unpin(device *dev, void *memory)
{
    (void)dev;
    cudaHostUnregister(memory);
}

static status make_stream(device *dev, int priority, stream **out)
{
    cuda_stream *own = calloc(1, sizeof *own);
    if (!own)
        return FAIL(ST_NO_MEMORY, "out of memory for a stream");
    cudaStream_t handle = NULL;
    cudaError_t error = cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, priority);
    if (error != cudaSuccess) {
        free(own);
        return FAIL(ST_BAD_DEVICE, "cudaStreamCreate: CUDA error %d, %s", (int)error,
                    cudaGetErrorString(error));
    }
    own->base = (stream){.dev = dev, .ops = dev->ops, .handle = handle};
    *out = &own->base;
    return ST_OK;
}

static status cuda_stream_new(device *dev, stream **out)
{
    TRY(use(dev));
    return make_stream(dev, 0, out);
}

static status cuda_urgent_stream_new(device *dev, stream **out)
{
    int least = 0, greatest = 0;
    TRY(use(dev));
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest), ST_BAD_DEVICE,
             "cudaDeviceGetStreamPriorityRange");
    return make_stream(dev, greatest, out);
}

static void cuda_stream_free(stream **held)
{
    cuda_stream *own = (cuda_stream *)*held;
    if (!own)
        return;
    cudaStreamSynchronize(cuda_handle(&own->base));
    for (int i = 0; i < own->blocks; i++)
        cudaFree(own->block[i]);
    cudaStreamDestroy(cuda_handle(&own->base));
    free(own);
    *held = NULL;
}

/* Where arrays of the device may rest on the host, the addresses say where the bytes are. */
static status queue_copy(stream *queue, void *dst, const void *src, size_t bytes,
                         enum cudaMemcpyKind kind)
{
    if (((const cuda_device *)queue->dev)->host_arrays)
        kind = cudaMemcpyDefault;
    if (bytes)
        CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, kind, cuda_handle(queue)), ST_BAD_DEVICE,
                 "cudaMemcpyAsync");
    return ST_OK;
}

static status cuda_to_device(stream *queue, void *dst, const void *src_host, size_t bytes)
{
    return queue_copy(queue, dst, src_host, bytes, cudaMemcpyHostToDevice);
}

static status cuda_to_host(stream *queue, void *dst_host, const void *src, size_t bytes)
{
    return queue_copy(queue, dst_host, src, bytes, cudaMemcpyDeviceToHost);
}

static status cuda_copy(stream *queue, void *dst, const void *src, size_t bytes)
{
    return queue_copy(queue, dst, src, bytes, cudaMemcpyDeviceToDevice);
}

static status cuda_zero(stream *queue, void *dst, size_t bytes)
{
    if (bytes)
        CUDA_TRY(cudaMemsetAsync(dst, 0, bytes, cuda_handle(queue)), ST_BAD_DEVICE,
                 "cudaMemsetAsync");
    return ST_OK;
}

/* What became of queued work. A kernel that gave up a wait has said where. */
static status end_of_work(const device *dev, cudaError_t error, const char *seen_at)
{
    return error == cudaSuccess
               ? ST_OK
               : kernel_stuck_failed(((const cuda_device *)dev)->facts.stuck, seen_at, (int)error,
                                     cudaGetErrorString(error));
}

static status synchronize(stream *queue)
{
    return end_of_work(queue->dev, cudaStreamSynchronize(cuda_handle(queue)),
                       "cudaStreamSynchronize");
}

static status cuda_wait(stream *queue)
{
    queue->dev->counts.waits++;
    device_wait_begins(queue->dev);
    return device_wait_ended(queue->dev, synchronize(queue));
}

static status cuda_event_new(device *dev, event **out)
{
    TRY(use(dev));
    cudaEvent_t cuda_event = NULL;
    CUDA_TRY(cudaEventCreate(&cuda_event), ST_BAD_DEVICE, "cudaEventCreate");
    *out = (event *)cuda_event;
    return ST_OK;
}

static void cuda_event_free(event **moment)
{
    if (*moment)
        cudaEventDestroy((cudaEvent_t)*moment);
    *moment = NULL;
}

static status cuda_event_record(stream *queue, event *moment)
{
    CUDA_TRY(cudaEventRecord((cudaEvent_t)moment, cuda_handle(queue)), ST_BAD_DEVICE,
             "cudaEventRecord");
    return ST_OK;
}

static status cuda_event_follow(stream *queue, event *moment)
{
    CUDA_TRY(cudaStreamWaitEvent(cuda_handle(queue), (cudaEvent_t)moment, 0), ST_BAD_DEVICE,
             "cudaStreamWaitEvent");
    return ST_OK;
}

static status cuda_event_wait(device *dev, event *moment)
{
    dev->counts.event_waits++;
    device_wait_begins(dev);
    return device_wait_ended(
        dev, end_of_work(dev, cudaEventSynchronize((cudaEvent_t)moment), "cudaEventSynchronize"));
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
static status cuda_capture_begin(stream *queue)
{
    CUDA_TRY(cudaStreamBeginCapture(cuda_handle(queue), cudaStreamCaptureModeThreadLocal),
             ST_BAD_DEVICE, "cudaStreamBeginCapture");
    ((cuda_stream *)queue)->capturing = true;
    return ST_OK;
}

static status cuda_capture_end(stream *queue, graph **out)
{
    *out = NULL;
    cudaGraph_t shape = NULL;
    cudaGraphExec_t ready = NULL;
    ((cuda_stream *)queue)->capturing = false;
    queue->dev->counts.captures++;
    CUDA_TRY(cudaStreamEndCapture(cuda_handle(queue), &shape), ST_BAD_DEVICE,
             "cudaStreamEndCapture: some call in the captured step waited or allocated");
    cudaError_t error = cudaGraphInstantiate(&ready, shape, 0);
    cudaGraphDestroy(shape);
    CUDA_TRY(error, ST_BAD_DEVICE, "cudaGraphInstantiate");
    *out = (graph *)ready;
    return ST_OK;
}

static status cuda_graph_launch(stream *queue, graph *captured)
{
    CUDA_TRY(cudaGraphLaunch((cudaGraphExec_t)captured, cuda_handle(queue)), ST_BAD_DEVICE,
             "cudaGraphLaunch");
    return ST_OK;
}

static void cuda_graph_free(graph **captured)
{
    if (*captured)
        cudaGraphExecDestroy((cudaGraphExec_t)*captured);
    *captured = NULL;
}

/* The memory of the whole GPU, other processes included. */
static status cuda_memory(device *dev, size_t *out_used, size_t *out_total)
{
    TRY(use(dev));
    size_t unused = 0;
    CUDA_TRY(cudaMemGetInfo(&unused, out_total), ST_BAD_DEVICE, "cudaMemGetInfo");
    *out_used = *out_total - unused;
    return ST_OK;
}

static status cuda_available(device *dev, size_t *out)
{
    TRY(use(dev));
    size_t total;
    CUDA_TRY(cudaMemGetInfo(out, &total), ST_BAD_DEVICE, "cudaMemGetInfo");
    return ST_OK;
}

const cuda_facts *cuda_facts_of(const stream *queue)
{
    return &((const cuda_device *)queue->dev)->facts;
}

/* Adds a block of scratch that is larger than those before. */
static status add_scratch(cuda_stream *own, size_t size)
{
    TRY(cuda_alloc(own->base.dev, size, &own->block[own->blocks]));
    own->block_bytes = size;
    own->base.dev->counts.scratch += (int64_t)size;
    own->blocks++;
    return ST_OK;
}

static status cuda_reserve(stream *base, size_t bytes)
{
    cuda_stream *own = (cuda_stream *)base;
    return bytes > own->block_bytes ? add_scratch(own, bytes) : ST_OK;
}

static size_t grow_size(size_t now, size_t wanted)
{
    size_t more = now < SCRATCH_LARGE ? 2 * now : now + now / 8;
    more = more > SCRATCH_LEAST ? more : SCRATCH_LEAST;
    return more > wanted ? more : wanted;
}

status cuda_scratch(stream *base, size_t bytes, void **out)
{
    cuda_stream *own = (cuda_stream *)base;
    if (bytes > own->block_bytes) {
        if (own->capturing || own->blocks == CUDA_SCRATCH_BLOCKS)
            return FAIL(
                ST_INTERNAL,
                "an op needs %zu bytes of scratch while a step is captured, and only %zu are "
                "there: this shape did not run before the capture",
                bytes, own->block_bytes);
        TRY(add_scratch(own, grow_size(own->block_bytes, bytes)));
    }
    *out = own->blocks ? own->block[own->blocks - 1] : NULL;
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
    .host_array = cuda_host_array,
    .release_host_array = cuda_release_host,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .stream_new = cuda_stream_new,
    .urgent_stream_new = cuda_urgent_stream_new,
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
