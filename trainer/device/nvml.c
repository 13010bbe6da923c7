/* SPDX-License-Identifier: Apache-2.0 */
/* nvml.c: see nvml.h. The library's header is a separate package that few machines have, so the
 * functions and structs are declared here as NVIDIA's "NVML API Reference Guide" gives them. */
#include "trainer/device/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvml_memory {
    unsigned long long total, unused, used;
} nvml_memory;

/* nvmlMemory_v2_t: its version is its size, with a 2 in the highest byte. */
typedef struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, unused, used;
} nvml_memory_v2;

typedef struct nvml_library {
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *bus, void **out);
    int (*memory)(void *gpu, nvml_memory *out);
    int (*at)(unsigned index, void **out);
    int (*name)(void *gpu, char *out, unsigned size);
    int (*memory_v2)(void *gpu, nvml_memory_v2 *out);
    int (*count)(unsigned *out);
    int (*uuid)(void *gpu, char *out, unsigned size);
    int (*by_uuid)(const char *uuid, void **out);
    int (*capability)(void *gpu, int *major, int *minor); /* NULL: not there */
    const char *(*reason)(int error);
} nvml_library;

static status load_nvml(void *handle, nvml_library *out)
{
    const struct {
        const char *name;
        void **to;
    } wanted[] = {{"nvmlInit_v2", (void **)&out->init},
                  {"nvmlShutdown", (void **)&out->shutdown},
                  {"nvmlDeviceGetHandleByPciBusId_v2", (void **)&out->find},
                  {"nvmlDeviceGetMemoryInfo", (void **)&out->memory},
                  {"nvmlDeviceGetHandleByIndex_v2", (void **)&out->at},
                  {"nvmlDeviceGetName", (void **)&out->name},
                  {"nvmlDeviceGetMemoryInfo_v2", (void **)&out->memory_v2},
                  {"nvmlDeviceGetCount_v2", (void **)&out->count},
                  {"nvmlDeviceGetUUID", (void **)&out->uuid},
                  {"nvmlDeviceGetHandleByUUID", (void **)&out->by_uuid},
                  {"nvmlErrorString", (void **)&out->reason}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].to = dlsym(handle, wanted[i].name);
        if (!*wanted[i].to)
            return FAIL(ST_UNAVAILABLE, "libnvidia-ml.so.1 does not define %s", wanted[i].name);
    }
    *(void **)&out->capability = dlsym(handle, "nvmlDeviceGetCudaComputeCapability");
    return ST_OK;
}

static status ask_memory(const nvml_library *library, const char *bus, size_t *out)
{
    void *gpu = NULL;
    nvml_memory out_memory = {0};
    int error = library->init();
    if (error)
        return FAIL(ST_UNAVAILABLE, "NVML cannot be started: %s", library->reason(error));
    error = library->find(bus, &gpu);
    if (!error)
        error = library->memory(gpu, &out_memory);
    library->shutdown();
    if (error)
        return FAIL(ST_UNAVAILABLE, "NVML cannot read the memory of GPU %s: %s", bus,
                    library->reason(error));
    *out = (size_t)out_memory.unused;
    return ST_OK;
}

static status open_library(void **out_handle, nvml_library *out)
{
    *out_handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!*out_handle)
        return FAIL(ST_UNAVAILABLE, "NVML cannot be loaded: %s", dlerror());
    status st = load_nvml(*out_handle, out);
    if (st != ST_OK)
        dlclose(*out_handle);
    return st;
}

status nvml_free_bytes(const char *bus, size_t *out)
{
    nvml_library library = {0};
    void *handle;
    TRY(open_library(&handle, &library));
    status st = ask_memory(&library, bus, out);
    dlclose(handle);
    return st;
}

enum { UUID_BYTES = 96 };

/* Finds the GPU whose UUID begins with this entry of CUDA_VISIBLE_DEVICES. */
static bool find_by_uuid(const nvml_library *library, const char *entry, unsigned count, void **out)
{
    char uuid[UUID_BYTES];
    for (unsigned i = 0; i < count; i++)
        if (library->at(i, out) == 0 && library->uuid(*out, uuid, sizeof uuid) == 0 &&
            strncmp(uuid, entry, strlen(entry)) == 0)
            return true;
    return library->by_uuid(entry, out) == 0; /* a part of a GPU (MIG) */
}

static bool find_by_entry(const nvml_library *library, const char *entry, unsigned count,
                          void **out)
{
    char *end;
    errno = 0;
    const long number = strtol(entry, &end, 10);
    if (end == entry || *end)
        return *entry && find_by_uuid(library, entry, count, out);
    return !errno && number >= 0 && number < (long)count && library->at((unsigned)number, out) == 0;
}

/* Goes through CUDA_VISIBLE_DEVICES as far as its entries name GPUs. Returns how many do; *out is
 * the first of them. */
static int find_visible(const nvml_library *library, const char *list, unsigned count, void **out)
{
    char entry[UUID_BYTES];
    int found = 0;
    void *gpu;
    for (const char *at = list;; at++) {
        at += strspn(at, " ");
        const size_t length = strcspn(at, ", ");
        if (length >= sizeof entry)
            return found;
        memcpy(entry, at, length);
        entry[length] = 0;
        if (!find_by_entry(library, entry, count, &gpu))
            return found;
        if (found++ == 0)
            *out = gpu;
        at += strcspn(at, ",");
        if (!*at)
            return found;
    }
}

static status describe_gpu(const nvml_library *library, void *gpu, nvml_gpu *out)
{
    nvml_memory_v2 out_memory = {.version = sizeof out_memory | 2u << 24};
    int error = library->name(gpu, out->name, sizeof out->name);
    if (!error)
        error = library->memory_v2(gpu, &out_memory);
    if (error)
        return FAIL(ST_UNAVAILABLE, "NVML cannot read the name and memory of the first GPU: %s",
                    library->reason(error));
    int major = 0, minor = 0;
    if (library->capability && library->capability(gpu, &major, &minor) == 0)
        out->sm = 10 * major + minor;
    out->memory = (size_t)(out_memory.total - out_memory.reserved);
    out->unused = (size_t)out_memory.unused;
    return ST_OK;
}

static status ask_first(const nvml_library *library, nvml_gpu *out)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    void *gpu = NULL;
    unsigned count = 0;
    int error = library->count(&count);
    if (error)
        return FAIL(ST_UNAVAILABLE, "NVML cannot count the GPUs: %s", library->reason(error));
    if (count == 0)
        return FAIL(ST_UNAVAILABLE, "the driver shows no GPU");
    out->visible = find_visible(library, list ? list : "0", count, &gpu);
    if (out->visible == 0)
        return FAIL(ST_UNAVAILABLE,
                    "CUDA_VISIBLE_DEVICES is \"%.100s\", which names none of the driver's %u GPUs",
                    list ? list : "", count);
    if (!list)
        out->visible = (int)count;
    return describe_gpu(library, gpu, out);
}

static status start_and_ask(const nvml_library *library, nvml_gpu *out)
{
    int error = library->init();
    if (error)
        return FAIL(ST_UNAVAILABLE, "NVML cannot be started: %s", library->reason(error));
    status st = ask_first(library, out);
    library->shutdown();
    return st;
}

status nvml_first_visible(nvml_gpu *out)
{
    nvml_library library = {0};
    nvml_gpu gpu = {.visible = 0};
    void *handle;
    TRY(open_library(&handle, &library));
    status st = start_and_ask(&library, &gpu);
    dlclose(handle);
    if (st == ST_OK)
        *out = gpu;
    return st;
}
