/* nvml.c: see nvml.h. The library's header is a package of its own that few machines have, so the
 * functions and structs are declared here as NVIDIA's "NVML API Reference Guide" gives them. */
#include "trainer/device/nvml.h"

#include <dlfcn.h>

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
                  {"nvmlDeviceGetMemoryInfo_v2", (void **)&out->memory_v2}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].to = dlsym(handle, wanted[i].name);
        if (!*wanted[i].to)
            return FAIL(ST_UNAVAILABLE, "libnvidia-ml.so.1 does not define %s", wanted[i].name);
    }
    return ST_OK;
}

static status ask_memory(const nvml_library *l, const char *bus, size_t *out)
{
    void *gpu = NULL;
    nvml_memory m = {0};
    int error = l->init();
    if (error)
        return FAIL(ST_UNAVAILABLE, "nvmlInit: error %d", error);
    error = l->find(bus, &gpu);
    if (!error)
        error = l->memory(gpu, &m);
    l->shutdown();
    if (error)
        return FAIL(ST_UNAVAILABLE, "NVML cannot read the memory of GPU %s: error %d", bus, error);
    *out = (size_t)m.unused;
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
    nvml_library l = {0};
    void *handle;
    TRY(open_library(&handle, &l));
    status st = ask_memory(&l, bus, out);
    dlclose(handle);
    return st;
}

static status ask_first(const nvml_library *l, char *name, unsigned size, size_t *out)
{
    void *gpu = NULL;
    nvml_memory_v2 m = {.version = sizeof m | 2u << 24};
    int error = l->init();
    if (error)
        return FAIL(ST_UNAVAILABLE, "nvmlInit: error %d", error);
    error = l->at(0, &gpu);
    if (!error)
        error = l->name(gpu, name, size);
    if (!error)
        error = l->memory_v2(gpu, &m);
    l->shutdown();
    if (error)
        return FAIL(ST_UNAVAILABLE, "NVML cannot read the name and memory of GPU 0: error %d",
                    error);
    *out = (size_t)(m.total - m.reserved);
    return ST_OK;
}

status nvml_first_gpu(char *name, unsigned size, size_t *out)
{
    nvml_library l = {0};
    void *handle;
    TRY(open_library(&handle, &l));
    status st = ask_first(&l, name, size, out);
    dlclose(handle);
    return st;
}
