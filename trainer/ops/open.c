/* SPDX-License-Identifier: Apache-2.0 */
/* open.c: opens a device (open.h). The CPU backend is linked in. CUDA is a separate library that
 * is loaded only when wanted, so that one binary starts with and without a driver. */
#include "trainer/ops/open.h"

#include "common/conf/conf.h"
#include "common/program/log.h"
#include "trainer/device/cpu.h"
#include "trainer/ops/cuda_module.h"
#include "trainer/ops/table.h"

const char *ops_first_missing(const ops_table *table)
{
#define OP(name)                                                                                   \
    if (!table->name)                                                                              \
        return #name;
#include "trainer/ops/ops.def"
    return NULL;
}

/* Loads the CUDA library. It stays loaded, because devices hold pointers to its functions. */
static status cuda_backend(cuda_module *out)
{
    cuda_module_entry entry;
    TRY(module_open("libtessera_cuda.so", "tessera_cuda_backend", "CUDA backend",
                    "where nvcc is found", (void **)&entry));
    *out = entry(module_program());
    return ST_OK;
}

static status open_with(const backend_vtable *backend, const ops_table *ops,
                        const device_options *options, device **out)
{
    TRY(backend->open(options, out));
    (*out)->ops = ops;
    return ST_OK;
}

static status cuda_open(const device_options *options, device **out)
{
    cuda_module cuda;
    TRY(cuda_backend(&cuda));
    return open_with(cuda.backend, cuda.ops, options, out);
}

static status cpu_open(const device_options *options, device **out)
{
    const ops_table *ops = &ops_cpu;
#ifdef TESSERA_OPS_AVX2
    if (cpu_has_avx2())
        ops = &ops_cpu_avx2;
#endif
    return open_with(&backend_cpu, ops, options, out);
}

/* Opens the CPU in place of a GPU and keeps the reason. */
static status fall_back(const device_options *options, const char *why, device **out)
{
    device_options cpu = *options;
    cpu.index = 0;
    log_info("using the CPU reason=\"%s\"", why);
    TRY(cpu_open(&cpu, out));
    snprintf((*out)->no_gpu, sizeof(*out)->no_gpu, "%s", why);
    return ST_OK;
}

static status open_kind(int kind, const device_options *options, device **out)
{
    if (kind == BACKEND_CPU)
        return cpu_open(options, out);
    if (kind == BACKEND_CUDA)
        return cuda_open(options, out);
    device *dev = NULL;
    char why[sizeof dev->no_gpu];
    if (cuda_open(options, &dev) != ST_OK) {
        snprintf(why, sizeof why, "%.500s", status_text());
        status_clear();
        return fall_back(options, why, out);
    }
    const char *missing = ops_first_missing(dev->ops);
    if (missing) {
        snprintf(why, sizeof why, "the CUDA backend lacks the op %s on %.400s", missing,
                 dev->description);
        device_close(&dev);
        return fall_back(options, why, out);
    }
    *out = dev;
    return ST_OK;
}

status device_open(int kind, const device_options *options, device **out)
{
    device *dev = NULL;
    size_t total;
    TRY(open_kind(kind, options, &dev));
    status st = dev->backend->memory(dev, &dev->used_at_open, &total);
    if (st != ST_OK) {
        device_close(&dev);
        return st;
    }
    dev->host_ranks = options->host_ranks > 0 ? options->host_ranks : 1;
    *out = dev;
    return ST_OK;
}
