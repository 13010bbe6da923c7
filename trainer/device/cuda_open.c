/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_open.c: implements cuda_device.h: finds the GPU, reads its facts, decides whose kernels it
 * runs, and makes its context. */
#include "trainer/device/cuda_device.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/conf/conf.h"
#include "common/program/log.h"
#include "trainer/device/cublas.h"
#include "trainer/device/cudnn.h"
#include "trainer/device/choices.h"
#include "trainer/device/nvml.h"

enum { LEAST_SM = 80 }; /* the first generation with bf16 products and asynchronous copies */

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

static status find_gpu(const device_options *options, int *out_index)
{
    int count = 0, index = options->index;
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
    if (options->share)
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

static status read_facts(cuda_device *cuda, struct cudaDeviceProp *properties)
{
    CUDA_TRY(cudaGetDeviceProperties(properties, cuda->options.index), ST_BAD_DEVICE,
             "cudaGetDeviceProperties");
    cuda->facts = (cuda_facts){.sm = 10 * properties->major + properties->minor,
                               .multiprocessors = properties->multiProcessorCount,
                               .shared_bytes = (int)properties->sharedMemPerBlockOptin,
                               .l2_bytes = properties->l2CacheSize,
                               .turns = cuda->options.collectives ? TURNS_BESIDE : 1};
    cuda->base.multiprocessors = properties->multiProcessorCount;
    CUDA_TRY(cudaHostAlloc((void **)&cuda->facts.stuck, sizeof *cuda->facts.stuck,
                           cudaHostAllocMapped | cudaHostAllocPortable),
             ST_NO_MEMORY, "cudaHostAlloc");
    *cuda->facts.stuck = (kernel_stuck){0};
    name_memory(&properties->uuid, cuda->base.memory_name);
    if (cuda->facts.sm < LEAST_SM)
        return FAIL(
            ST_UNAVAILABLE,
            "CUDA: GPU %d (%.100s) has compute capability %d.%d; the kernels need %d.%d or later",
            cuda->options.index, properties->name, properties->major, properties->minor,
            LEAST_SM / 10, LEAST_SM % 10);
    return ST_OK;
}

/* Decides whose attention kernels this device uses, and writes the choice to `out` for the device's
 * description. */
static status choose_attention(cuda_device *cuda, char *out, size_t size)
{
    int wanted = cuda->options.attention;
    cuda->cudnn = wanted != ATTENTION_PORTABLE && choices_check_cudnn(cuda->facts.sm) == ST_OK &&
                  cudnn_open() == ST_OK;
    if (cuda->cudnn || wanted == ATTENTION_PORTABLE) {
        snprintf(out, size, "%s", cuda->cudnn ? "cuDNN" : "our own kernels");
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
static status make_context(cuda_device *cuda)
{
    char bus[32];
    size_t before = 0, after = 0;
    CUDA_TRY(cudaDeviceGetPCIBusId(bus, sizeof bus, cuda->options.index), ST_BAD_DEVICE,
             "cudaDeviceGetPCIBusId");
    bool known = nvml_free_bytes(bus, &before) == ST_OK;
    CUDA_TRY(cudaSetDevice(cuda->options.index), ST_BAD_DEVICE, "cudaSetDevice");
    CUDA_TRY(cudaFree(NULL), ST_BAD_DEVICE, "cudaFree, the first call that needs a context");
    known = known && nvml_free_bytes(bus, &after) == ST_OK;
    if (!known) {
        log_info("the memory of the CUDA context cannot be measured reason=\"%s\"", status_text());
        status_clear();
    }
    cuda->base.context_bytes = known && before > after ? before - after : 0;
    return ST_OK;
}

void cuda_free(cuda_device *cuda)
{
    for (int i = 0; i < KEPT_COUNT; i++)
        if (cuda->kept[i].data)
            cuda->kept[i].done(cuda->kept[i].data);
    cudaFreeHost(cuda->facts.stuck);
    free(cuda);
}

status cuda_open_gpu(const device_options *options, cuda_device **out)
{
    char attention[256];
    bool hopper = false;
    int index;
    TRY(find_gpu(options, &index));
    TRY(cublas_open());
    struct cudaDeviceProp properties;
    cuda_device *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return FAIL(ST_NO_MEMORY, "out of memory while the CUDA device was opened");
    cuda->options = *options;
    cuda->options.index = index;
    status st = read_facts(cuda, &properties);
    if (st == ST_OK)
        st = choose_attention(cuda, attention, sizeof attention);
    if (st == ST_OK)
        st = experts_choose(cuda->options.experts, cuda->facts.sm, &hopper);
    if (st == ST_OK)
        st = make_context(cuda);
    if (st != ST_OK) {
        cuda_free(cuda);
        return st;
    }
    choices_make(options->attention, options->experts,
                 (choice_facts){.cudnn = cuda->cudnn, .hopper = hopper}, &cuda->base.choices);
    snprintf(cuda->base.description, sizeof cuda->base.description,
             "%.100s, sm_%d, %d multiprocessors, attention by %s, experts by %s kernel%s",
             properties.name, cuda->facts.sm, cuda->facts.multiprocessors, attention,
             hopper ? "Hopper's" : "the portable",
             options->collectives ? DEVICE_BESIDE_COLLECTIVES : "");
    *out = cuda;
    return ST_OK;
}
