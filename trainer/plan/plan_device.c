/* plan_device.c: finds the device by name, from an open one, or from the driver of this machine. */
#include "trainer/plan/plan_device.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "trainer/device/host_memory.h"
#include "trainer/device/nvml.h"
#include "trainer/ops/open.h"

static const double GIB = 1073741824.0;

/* Element sizes of the CUDA backend. They are repeated here because that backend is only built on a
 * machine with CUDA's toolkit. */
static const backend_vtable gpu_sizes = {.name = "cuda",
                                         .act = DT_BF16,
                                         .acc = DT_F32,
                                         .fixed_shapes = true,
                                         .overhead = true,
                                         .ahead = 1};

/* For a device that is not in this machine. Memory is about what its driver offers, which is less
 * than the nominal size and differs by some tenths of a GiB between boards. */
static const struct {
    const char *word, *name;
    double gib;
    int multiprocessors, sm;
} gpus[] = {{"h200", "H200", 139.7, 132, 90},
            {"h100", "H100", 79.1, 132, 90},
            {"b200", "B200", 178.3, 148, 100},
            {"a100", "A100", 79.1, 108, 80}};
enum { GPUS = sizeof gpus / sizeof *gpus };

bool plan_device_is_cpu(const plan_device *on)
{
    return on->sizes == &backend_cpu;
}

void plan_device_share(plan_device *inout, int ranks)
{
    inout->usable *= (double)inout->sharers / (ranks > 1 ? ranks : 1);
    inout->sharers = ranks > 1 ? ranks : 1;
}

device_claims plan_device_claims(const plan_device *on)
{
    return (device_claims){(size_t)on->memory, on->multiprocessors};
}

const char *plan_device_text(const plan_device *on, char out[PLAN_DEVICE_TEXT])
{
    const double unused = on->usable * on->sharers;
    int length = snprintf(out, PLAN_DEVICE_TEXT, "%.1f of %.1f GiB are free", unused / GIB,
                          on->memory / GIB);
    if (on->sharers > 1)
        snprintf(out + length, PLAN_DEVICE_TEXT - (size_t)length, ", for %d ranks: %.1f GiB each",
                 on->sharers, on->usable / GIB);
    return out;
}

static plan_device gpu_of(const char *name, double memory, int multiprocessors, int sm)
{
    plan_device on = {.sizes = &gpu_sizes,
                      .memory = memory,
                      .usable = memory,
                      .sharers = 1,
                      .multiprocessors = multiprocessors,
                      .sm = sm,
                      .host_ranks = 1};
    snprintf(on.name, sizeof on.name, "%s", name);
    return on;
}

/* What the host of a GPU of this machine has; not known if it does not say. */
static double host_of_gpu(void)
{
    host_memory host;
    if (host_memory_read("", &host) == ST_OK)
        return (double)host.available;
    status_clear();
    return 0;
}

/* Multiprocessors of a GPU that is not opened, by the name that its driver gives it, since NVML
 * does not tell them. */
static int guess_multiprocessors(const char *description)
{
    for (int i = 0; i < GPUS; i++)
        if (strstr(description, gpus[i].name))
            return gpus[i].multiprocessors;
    return gpus[0].multiprocessors;
}

static status this_cpu(plan_device *out)
{
    device *dev = NULL;
    TRY(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &dev));
    status st = plan_device_opened(dev, out, NULL);
    device_close(&dev);
    return st;
}

status plan_device_named(const char *name, plan_device *out)
{
    char *end;
    for (int i = 0; i < GPUS; i++)
        if (strcasecmp(name, gpus[i].word) == 0) {
            *out = gpu_of(gpus[i].name, gpus[i].gib * GIB, gpus[i].multiprocessors, gpus[i].sm);
            return ST_OK;
        }
    if (strcasecmp(name, "cpu") == 0)
        return this_cpu(out);
    errno = 0;
    const long long bytes = strtoll(name, &end, 10);
    if (end == name || *end || errno || bytes <= 0)
        return FAIL(ST_USAGE, "--device %s: expected %s", name, PLAN_DEVICE_NAMES);
    *out = gpu_of("GPU", (double)bytes, gpus[0].multiprocessors, gpus[0].sm);
    return ST_OK;
}

/* The compute capability that a GPU's description names (device/cuda_open.c): "NAME, sm_90, ..". */
static int described_sm(const char *description)
{
    static const char before[] = ", sm_";
    const char *at = strstr(description, before);
    return at ? atoi(at + strlen(before)) : gpus[0].sm;
}

status plan_device_opened(device *dev, plan_device *out, plan_room *out_room)
{
    size_t used, total, available;
    plan_device on;
    TRY(dev->backend->memory(dev, &used, &total));
    TRY(dev->backend->available(dev, &available));
    if (dev->backend->immediate) {
        on = (plan_device){.name = "CPU", .sizes = &backend_cpu, .sharers = 1, .host_ranks = 1};
    } else {
        on = gpu_of(dev->description, 0, dev->multiprocessors, described_sm(dev->description));
        on.name[strcspn(on.name, ",")] = 0;
        on.host = host_of_gpu();
    }
    /* `used` is this process's own on the CPU. Of a GPU it is everyone's: there the context is this
     * process's, and what was taken since, such as NCCL's buffers, if it has the GPU alone. */
    plan_room room = {.memory = (double)total, .available = (double)available, .own = (double)used};
    if (!dev->backend->immediate) {
        room.own = (double)dev->context_bytes;
        room.grown = used > dev->used_at_open ? (double)(used - dev->used_at_open) : 0.0;
    }
    on.memory = room.memory;
    on.usable = fmin(room.memory, room.available + room.own + room.grown);
    *out = on;
    if (out_room)
        *out_room = room;
    return ST_OK;
}

status plan_device_here(const conf *options, int ranks, plan_device *out,
                        char out_why[PLAN_DEVICE_WHY])
{
    nvml_gpu gpu;
    out_why[0] = 0;
    if (options->training_backend == BACKEND_CPU) {
        TRY(this_cpu(out));
        plan_device_share(out, ranks);
        return ST_OK;
    }
    if (nvml_first_visible(&gpu) == ST_OK) {
        *out = gpu_of(gpu.name, (double)gpu.memory, guess_multiprocessors(gpu.name),
                      gpu.sm ? gpu.sm : gpus[0].sm);
        out->usable = (double)gpu.unused;
        out->host = host_of_gpu();
        out->host_ranks = ranks > 1 ? ranks : 1;
        if (options->comm_engine ==
            ENGINE_MPI) /* the ranks take turns with the GPUs (session_device.c) */
            plan_device_share(out, (ranks + gpu.visible - 1) / gpu.visible);
        return ST_OK;
    }
    snprintf(out_why, PLAN_DEVICE_WHY, "no GPU was found here: %.300s; --device names another one",
             status_text());
    status_clear();
    return plan_device_named(gpus[0].word, out);
}
