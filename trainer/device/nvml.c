/* nvml.c: see nvml.h. The toolkit's header is a package of its own that few machines have, so the
 * four functions stand here as the library's documentation gives them. */
#include "trainer/device/nvml.h"

#include <dlfcn.h>

typedef struct nvml_memory {
    unsigned long long total, unused, used;
} nvml_memory;

typedef struct nvml_library {
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *bus, void **out);
    int (*memory)(void *gpu, nvml_memory *out);
} nvml_library;

static status load(void *handle, nvml_library *out)
{
    const struct {
        const char *name;
        void **to;
    } wanted[] = {{"nvmlInit_v2", (void **)&out->init},
                  {"nvmlShutdown", (void **)&out->shutdown},
                  {"nvmlDeviceGetHandleByPciBusId_v2", (void **)&out->find},
                  {"nvmlDeviceGetMemoryInfo", (void **)&out->memory}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].to = dlsym(handle, wanted[i].name);
        if (!*wanted[i].to)
            return FAIL(ST_UNAVAILABLE, "libnvidia-ml.so.1 has no %s", wanted[i].name);
    }
    return ST_OK;
}

static status ask(const nvml_library *l, const char *bus, size_t *out)
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
        return FAIL(ST_UNAVAILABLE, "NVML does not tell the memory of GPU %s: error %d", bus,
                    error);
    *out = (size_t)m.unused;
    return ST_OK;
}

status nvml_free_bytes(const char *bus, size_t *out)
{
    nvml_library l = {0};
    void *handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return FAIL(ST_UNAVAILABLE, "NVML can not be loaded: %s", dlerror());
    status st = load(handle, &l);
    if (st == ST_OK)
        st = ask(&l, bus, out);
    dlclose(handle);
    return st;
}
