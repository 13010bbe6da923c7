/* cuda.cu: a GPU as a device: memory, copies and streams through the CUDA runtime.
 *
 * Built into libtessera_cuda.so with the runtime linked statically; the driver is found by the
 * runtime when the library is used. Ops are in ../ops/cuda. */
#include "trainer/device/cuda_module.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

extern "C" const struct ops_table ops_cuda;

static cuda_module_fail module_fail;

#define CUDA_FAIL(code, ...) module_fail((code), __FILE__, __LINE__, NULL, -1, -1, __VA_ARGS__)
#define CUDA_TRY(call, code, what)                                                                 \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess)                                                                 \
            return CUDA_FAIL((code), "%s: CUDA error %d, %s", (what), (int)error_,                 \
                             cudaGetErrorString(error_));                                          \
    } while (0)

typedef struct cuda_device {
    device base;
    int index;
} cuda_device;

extern const backend_vtable backend_cuda;

static status cuda_open(int index, int threads, device **out)
{
    (void)threads; /* the CPU's business */
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver)
        return CUDA_FAIL(ST_UNAVAILABLE,
                         "CUDA: no NVIDIA driver, or one older than the toolkit (error 35)");
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
        return CUDA_FAIL(ST_UNAVAILABLE, "CUDA: a driver but no GPU (error 100)");
    if (error != cudaSuccess)
        return CUDA_FAIL(ST_UNAVAILABLE, "CUDA error %d, %s", (int)error,
                         cudaGetErrorString(error));
    if (index < 0 || index >= count)
        return CUDA_FAIL(ST_UNAVAILABLE, "CUDA: there are GPUs 0 to %d; %d was asked for",
                         count - 1, index);
    CUDA_TRY(cudaSetDevice(index), ST_BAD_DEVICE, "cudaSetDevice");
    cudaDeviceProp properties;
    CUDA_TRY(cudaGetDeviceProperties(&properties, index), ST_BAD_DEVICE, "properties of the GPU");
    cuda_device *d = (cuda_device *)calloc(1, sizeof *d);
    if (!d)
        return CUDA_FAIL(ST_NO_MEMORY, "no memory for a device");
    d->base.v = &backend_cuda;
    d->base.ops = &ops_cuda;
    d->index = index;
    snprintf(d->base.description, sizeof d->base.description, "%.100s", properties.name);
    *out = &d->base;
    return ST_OK;
}

static void cuda_close(device *d)
{
    free(d);
}

/* The runtime's current device is a setting of each thread. */
static status use(device *d)
{
    CUDA_TRY(cudaSetDevice(((cuda_device *)d)->index), ST_BAD_DEVICE, "cudaSetDevice");
    return ST_OK;
}

static status cuda_alloc(device *d, size_t bytes, void **out)
{
    status st = use(d);
    if (st != ST_OK)
        return st;
    void *p = NULL;
    cudaError_t error = cudaMalloc(&p, bytes ? bytes : 1); /* aligned to 256 or more */
    if (error != cudaSuccess)
        return CUDA_FAIL(ST_NO_MEMORY, "%s has no %zu bytes left: %s", d->description, bytes,
                         cudaGetErrorString(error));
    error = cudaMemset(p, 0, bytes);
    if (error != cudaSuccess) {
        cudaFree(p);
        return CUDA_FAIL(ST_BAD_DEVICE, "zeroing %zu bytes: %s", bytes, cudaGetErrorString(error));
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
    status st = use(d);
    if (st != ST_OK)
        return st;
    CUDA_TRY(cudaMallocHost(out, bytes ? bytes : 1), ST_NO_MEMORY, "pinned memory");
    return ST_OK;
}

static void cuda_release_host(device *d, void *p)
{
    (void)d;
    cudaFreeHost(p);
}

static status cuda_stream_new(device *d, stream **out)
{
    status st = use(d);
    if (st != ST_OK)
        return st;
    stream *s = (stream *)calloc(1, sizeof *s);
    if (!s)
        return CUDA_FAIL(ST_NO_MEMORY, "no memory for a stream");
    cudaStream_t handle = NULL;
    cudaError_t error = cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        free(s);
        return CUDA_FAIL(ST_BAD_DEVICE, "stream: %s", cudaGetErrorString(error));
    }
    s->dev = d;
    s->ops = d->ops;
    s->handle = handle;
    *out = s;
    return ST_OK;
}

static void cuda_stream_free(stream **s)
{
    if (!*s)
        return;
    cudaStreamDestroy((cudaStream_t)(*s)->handle);
    free(*s);
    *s = NULL;
}

static status queue_copy(stream *s, void *dst, const void *src, size_t bytes, cudaMemcpyKind kind)
{
    CUDA_TRY(cudaMemcpyAsync(dst, src, bytes, kind, (cudaStream_t)s->handle), ST_BAD_DEVICE,
             "copy");
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
    CUDA_TRY(cudaMemsetAsync(dst, 0, bytes, (cudaStream_t)s->handle), ST_BAD_DEVICE, "zeroing");
    return ST_OK;
}

static status cuda_wait(stream *s)
{
    CUDA_TRY(cudaStreamSynchronize((cudaStream_t)s->handle), ST_BAD_DEVICE, "work on the GPU");
    return ST_OK;
}

/* Of the whole GPU, other processes included. */
static status cuda_memory(device *d, size_t *out_used, size_t *out_total)
{
    status st = use(d);
    if (st != ST_OK)
        return st;
    size_t unused = 0;
    CUDA_TRY(cudaMemGetInfo(&unused, out_total), ST_BAD_DEVICE, "memory of the GPU");
    *out_used = *out_total - unused;
    return ST_OK;
}

static backend_vtable cuda_vtable(void)
{
    backend_vtable v = {};
    v.name = "cuda";
    v.act = DT_BF16;
    v.acc = DT_F32;
    v.open = cuda_open;
    v.close = cuda_close;
    v.alloc = cuda_alloc;
    v.release = cuda_release;
    v.alloc_host = cuda_alloc_host;
    v.release_host = cuda_release_host;
    v.stream_new = cuda_stream_new;
    v.stream_free = cuda_stream_free;
    v.to_device = cuda_to_device;
    v.to_host = cuda_to_host;
    v.copy = cuda_copy;
    v.zero = cuda_zero;
    v.wait = cuda_wait;
    v.memory = cuda_memory;
    v.fixed_shapes = true; /* steps will be captured */
    return v;
}

/* Filled when the library is loaded: C++17 has no designated initialisers. */
const backend_vtable backend_cuda = cuda_vtable();

extern "C" const backend_vtable *tessera_cuda_backend(cuda_module_fail fail)
{
    module_fail = fail;
    return &backend_cuda;
}
