/* SPDX-License-Identifier: Apache-2.0 */
/* nvml_double.c: stands in for libnvidia-ml.so.1. It shows as many GPUs as NVML_DOUBLE_GPUS says.
 * GPU i is named "NVIDIA DOUBLE-i", has the UUID "GPU-i0.." and (80 + i) GiB, of which the driver
 * reserves one and other processes hold ten. Without that variable it fails to start. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct memory_v1 {
    unsigned long long total, unused, used;
} memory_v1;

typedef struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, unused, used;
} memory_v2;

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *out);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out);
int nvmlDeviceGetName(const void *gpu, char *out, unsigned size);
int nvmlDeviceGetUUID(const void *gpu, char *out, unsigned size);
int nvmlDeviceGetCudaComputeCapability(const void *gpu, int *major, int *minor);
int nvmlDeviceGetMemoryInfo(const void *gpu, memory_v1 *out);
int nvmlDeviceGetMemoryInfo_v2(const void *gpu, memory_v2 *out);
const char *nvmlErrorString(int error);

enum { NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

static const char handles[16]; /* GPU i is the address of the i-th */

static unsigned count(void)
{
    const char *text = getenv("NVML_DOUBLE_GPUS");
    return text ? (unsigned)atoi(text) : 0;
}

static unsigned index_of(const void *gpu)
{
    return (unsigned)((const char *)gpu - handles);
}

int nvmlInit_v2(void)
{
    return getenv("NVML_DOUBLE_GPUS") ? 0 : DRIVER_NOT_LOADED;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *out)
{
    *out = count();
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    if (index >= count())
        return NOT_FOUND;
    *out = (void *)&handles[index];
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out)
{
    (void)bus;
    return nvmlDeviceGetHandleByIndex_v2(0, out);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out)
{
    return strcmp(uuid, "MIG-of-1") == 0 ? nvmlDeviceGetHandleByIndex_v2(1, out) : NOT_FOUND;
}

int nvmlDeviceGetName(const void *gpu, char *out, unsigned size)
{
    snprintf(out, size, "NVIDIA DOUBLE-%u", index_of(gpu));
    return 0;
}

int nvmlDeviceGetUUID(const void *gpu, char *out, unsigned size)
{
    snprintf(out, size, "GPU-%u0000000-0000-0000-0000-000000000000", index_of(gpu));
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(const void *gpu, int *major, int *minor)
{
    (void)gpu;
    *major = 8;
    *minor = 6;
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(const void *gpu, memory_v2 *out)
{
    const unsigned long long gib = 1ULL << 30;
    out->total = (80 + index_of(gpu)) * gib;
    out->reserved = gib;
    out->used = 10 * gib;
    out->unused = out->total - out->reserved - out->used;
    return 0;
}

int nvmlDeviceGetMemoryInfo(const void *gpu, memory_v1 *out)
{
    memory_v2 old;
    nvmlDeviceGetMemoryInfo_v2(gpu, &old);
    *out = (memory_v1){old.total, old.unused, old.total - old.unused};
    return 0;
}

const char *nvmlErrorString(int error)
{
    return error == NOT_FOUND ? "Not Found" : "Driver Not Loaded";
}
