/* open.c: opens a device (open.h). The CPU backend is linked in. CUDA is a library of its own that
 * is loaded only when wanted, so that one binary starts with and without a driver. */
#include "trainer/ops/open.h"

#include "common/conf/conf.h"
#include "common/program/log.h"
#include "trainer/device/cpu.h"
#include "trainer/device/shapes.h"
#include "trainer/ops/cuda_module.h"
#include "trainer/ops/table.h"

/* Loads the CUDA library. It stays loaded, because devices hold pointers to its functions. */
static status cuda_backend(cuda_module *out)
{
    cuda_module_entry entry;
    TRY(module_open("libtessera_cuda.so", "tessera_cuda_backend", "CUDA backend",
                    "where nvcc is found", (void **)&entry));
    *out = entry(module_program());
    return ST_OK;
}

static status open_with(const backend_vtable *v, const ops_table *ops, const device_options *o,
                        device **out)
{
    TRY(v->open(o, out));
    (*out)->ops = ops;
    return ST_OK;
}

static status cuda_open(const device_options *o, device **out)
{
    cuda_module cuda;
    TRY(cuda_backend(&cuda));
    return open_with(cuda.backend, cuda.ops, o, out);
}

static status cpu_open(const device_options *o, device **out)
{
    const ops_table *ops = &ops_cpu;
#ifdef TESSERA_OPS_AVX2
    if (cpu_has_avx2())
        ops = &ops_cpu_avx2;
#endif
    return open_with(&backend_cpu, ops, o, out);
}

/* Opens the CPU in place of a GPU and keeps the reason. */
static status fall_back(const device_options *o, const char *why, device **out)
{
    device_options cpu = *o;
    cpu.index = 0;
    log_info("using the CPU reason=\"%s\"", why);
    TRY(cpu_open(&cpu, out));
    snprintf((*out)->no_gpu, sizeof(*out)->no_gpu, "%s", why);
    return ST_OK;
}

static status open_kind(int kind, const device_options *o, device **out)
{
    if (kind == BACKEND_CPU)
        return cpu_open(o, out);
    if (kind == BACKEND_SHAPES)
        return open_with(&backend_shapes, &ops_shapes, o, out);
    if (kind == BACKEND_CUDA)
        return cuda_open(o, out);
    device *d = NULL;
    char why[sizeof d->no_gpu];
    if (cuda_open(o, &d) != ST_OK) {
        snprintf(why, sizeof why, "%.500s", status_text());
        status_clear();
        return fall_back(o, why, out);
    }
    const char *missing = ops_first_missing(d->ops);
    if (missing) {
        snprintf(why, sizeof why, "the CUDA backend lacks the op %s on %.400s", missing,
                 d->description);
        device_close(&d);
        return fall_back(o, why, out);
    }
    *out = d;
    return ST_OK;
}

status device_open(int kind, const device_options *o, device **out)
{
    device *d = NULL;
    size_t total;
    TRY(open_kind(kind, o, &d));
    status st = d->backend->memory(d, &d->used_at_open, &total);
    if (st != ST_OK) {
        device_close(&d);
        return st;
    }
    *out = d;
    return ST_OK;
}
