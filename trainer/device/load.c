/* load.c: which backend a run gets. The CPU is linked in; CUDA is a library of its own, looked for
 * only when wanted, so that one binary starts with and without a driver. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/conf.h"
#include "common/log.h"
#include "trainer/device/cuda_module.h"

/* Of ops/table.c; the table stays opaque here, so that nothing includes upward. */
extern const char *ops_first_missing(const struct ops_table *t);

/* ../lib/libtessera_cuda.so, seen from the folder of this program. */
static status module_path(char *out, size_t size)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return FAIL(ST_OS, "/proc/self/exe: can not be read, so the CUDA backend is not found");
    self[n] = 0;
    char *slash = strrchr(self, '/');
    *slash = 0;
    if ((size_t)snprintf(out, size, "%s/../lib/libtessera_cuda.so", self) >= size)
        return FAIL(ST_OS, "the path of this program is too long");
    return ST_OK;
}

/* The library stays open: devices hold its functions. */
static status cuda_backend(const backend_vtable **out)
{
    char path[PATH_MAX];
    TRY(module_path(path, sizeof path));
    if (access(path, R_OK) != 0)
        return FAIL(ST_UNAVAILABLE,
                    "no CUDA backend: %s is not there (it is built where nvcc is found)", path);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return FAIL(ST_UNAVAILABLE, "no CUDA backend: %s", dlerror());
    cuda_module_entry entry;
    *(void **)&entry = dlsym(handle, "tessera_cuda_backend");
    if (!entry)
        return FAIL(ST_UNAVAILABLE, "no CUDA backend: %s is another library", path);
    *out = entry(
        &(cuda_module_host){status_fail, status_context, status_text, status_clear, log_event});
    return ST_OK;
}

static status cuda_open(const device_options *o, device **out)
{
    const backend_vtable *v = NULL;
    TRY(cuda_backend(&v));
    return v->open(o, out);
}

status device_open(int kind, const device_options *o, device **out)
{
    if (kind == BACKEND_CPU)
        return backend_cpu.open(o, out);
    if (kind == BACKEND_CUDA)
        return cuda_open(o, out);
    device *d = NULL;
    device_options cpu = *o;
    cpu.index = 0;
    if (cuda_open(o, &d) != ST_OK) {
        log_info("CPU is used reason=\"%s\"", status_text());
        status_clear();
        return backend_cpu.open(&cpu, out);
    }
    const char *missing = ops_first_missing(d->ops);
    if (missing) {
        log_info("CPU is used reason=\"the CUDA backend has no op %s yet\" gpu=\"%s\"", missing,
                 d->description);
        device_close(&d);
        return backend_cpu.open(&cpu, out);
    }
    *out = d;
    return ST_OK;
}

void device_close(device **d)
{
    if (!*d)
        return;
    (*d)->v->close(*d);
    *d = NULL;
}
