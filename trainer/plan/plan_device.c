/* plan_device.c: finds the device by name, from an open one, or from the driver of this machine. */
#include "trainer/plan/plan_device.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    int multiprocessors;
} gpus[] = {
    {"h200", "H200", 139.7, 132}, {"h100", "H100", 79.1, 132}, {"b200", "B200", 178.3, 148}};
enum { GPUS = sizeof gpus / sizeof *gpus };

bool plan_device_is_cpu(const plan_device *p)
{
    return p->sizes == &backend_cpu;
}

static plan_device gpu_of(const char *name, double memory, int multiprocessors)
{
    plan_device p = {.sizes = &gpu_sizes, .memory = memory, .multiprocessors = multiprocessors};
    snprintf(p.name, sizeof p.name, "%s", name);
    return p;
}

/* Multiprocessors of a GPU, by the name that its driver gives it. */
static int multiprocessors_of(const char *description)
{
    for (int i = 0; i < GPUS; i++)
        if (strstr(description, gpus[i].name))
            return gpus[i].multiprocessors;
    return gpus[0].multiprocessors;
}

static status this_cpu(plan_device *out)
{
    device *d = NULL;
    TRY(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &d));
    status st = plan_device_opened(d, out);
    device_close(&d);
    return st;
}

status plan_device_named(const char *name, plan_device *out)
{
    char *end;
    for (int i = 0; i < GPUS; i++)
        if (strcmp(name, gpus[i].word) == 0) {
            *out = gpu_of(gpus[i].name, gpus[i].gib * GIB, gpus[i].multiprocessors);
            return ST_OK;
        }
    if (strcmp(name, "cpu") == 0)
        return this_cpu(out);
    errno = 0;
    const long long bytes = strtoll(name, &end, 10);
    if (end == name || *end || errno || bytes <= 0)
        return FAIL(ST_USAGE, "--device %s: expected %s", name, PLAN_DEVICE_NAMES);
    *out = gpu_of("GPU", (double)bytes, gpus[0].multiprocessors);
    return ST_OK;
}

status plan_device_opened(device *d, plan_device *out)
{
    size_t used, total;
    plan_device p;
    TRY(d->v->memory(d, &used, &total));
    if (d->v->immediate) {
        p = (plan_device){.name = "CPU", .sizes = &backend_cpu};
    } else {
        p = gpu_of(d->description, 0, multiprocessors_of(d->description));
        p.name[strcspn(p.name, ",")] = 0;
    }
    p.memory = (double)total;
    *out = p;
    return ST_OK;
}

status plan_device_here(const conf *c, plan_device *out, char out_why[PLAN_DEVICE_WHY])
{
    char name[96];
    size_t bytes;
    out_why[0] = 0;
    if (c->training_backend == BACKEND_CPU)
        return this_cpu(out);
    if (nvml_first_gpu(name, sizeof name, &bytes) == ST_OK) {
        *out = gpu_of(name, (double)bytes, multiprocessors_of(name));
        return ST_OK;
    }
    status_clear();
    snprintf(out_why, PLAN_DEVICE_WHY, "there is no GPU here; --device names another one (%s)",
             PLAN_DEVICE_NAMES);
    return plan_device_named(gpus[0].word, out);
}
