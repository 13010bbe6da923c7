/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.c: the CPU as a device: plain memory, and streams that run each piece of work before the call
 * returns.
 *
 * OpenBLAS runs on one thread: ops split their work over the device's own pool and call OpenBLAS
 * from there. Two pools on the same cores would wait for each other, and tiles that we cut
 * ourselves give the same bits with any number of threads. */
#include "trainer/device/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "trainer/device/blas.h"
#include "trainer/device/host_memory.h"
#include "trainer/device/pool.h"
#include "trainer/device/real.h"

enum {
    DEVICE_ALIGN = 256, /* what backend.h promises for alloc */
    SCRATCH_ALIGN = 64, /* a cache line, and the widest vector */
    /* Element operations of one part, about 10 us: far more than handing it to a thread costs. */
    PART_WORK = 1 << 15,
    PARTS_MAX = 128 /* enough parts for threads that come late or lose their core */
};

typedef struct cpu_device {
    device base;
    pool *pool;
    size_t memory; /* bytes that the machine or a cgroup gives this process */
} cpu_device;

typedef struct cpu_stream {
    stream base;
    void *scratch;
    size_t scratch_bytes;
} cpu_stream;

int cpu_threads(const stream *queue)
{
    return pool_threads(((const cpu_device *)queue->dev)->pool);
}

typedef struct job {
    int64_t count, each; /* items in all, items in one part */
    cpu_body body;
    const void *context;
} job;

static void run_part(const void *context, int64_t task, int thread)
{
    const job *work = context;
    part piece = {.begin = task * work->each, .end = (task + 1) * work->each, .thread = thread};
    piece.end = piece.end < work->count ? piece.end : work->count;
    work->body(work->context, piece);
}

void cpu_run(stream *queue, int64_t how_many, int64_t work, cpu_body body, const void *context)
{
    if (how_many <= 0)
        return;
    work = work < 1 ? 1 : work;
    int64_t count = work > INT64_MAX / how_many ? PARTS_MAX : how_many * work / PART_WORK;
    count = count > PARTS_MAX ? PARTS_MAX : count < 1 ? 1 : count;
    job whole = {.count = how_many,
                 .each = (how_many + count - 1) / count,
                 .body = body,
                 .context = context};
    pool_run(((cpu_device *)queue->dev)->pool, (how_many + whole.each - 1) / whole.each, run_part,
             &whole);
}

status cpu_scratch(stream *queue, size_t bytes, void **out)
{
    cpu_stream *own = (cpu_stream *)queue;
    if (bytes > own->scratch_bytes) {
        void *memory = NULL;
        if (posix_memalign(&memory, SCRATCH_ALIGN, bytes) != 0)
            return FAIL(ST_NO_MEMORY, "out of memory: a CPU op needs %zu bytes of scratch", bytes);
        free(own->scratch);
        queue->dev->counts.allocations++;
        own->scratch = memory;
        own->scratch_bytes = bytes;
    }
    *out = own->scratch;
    return ST_OK;
}

/* The first processor's "model name", or "CPU" if the kernel gives none. */
static void cpu_model_name(char *out, size_t size)
{
    snprintf(out, size, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file)
        return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, size, "%s", colon + 2);
        break;
    }
    fclose(file);
}

/* The number of processors this process may use, which a container or taskset can limit. */
static int cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (int)count : 1;
}

bool cpu_has_avx2(void)
{
#ifdef TESSERA_OPS_AVX2
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

static status cpu_open(const device_options *options, device **out)
{
    if (options->index != 0)
        return FAIL(ST_UNAVAILABLE, "there is no CPU device %d: the whole CPU is device 0",
                    options->index);
    host_memory memory;
    TRY(host_memory_read("", &memory));
    TRY(blas_open());
    cpu_device *cpu = calloc(1, sizeof *cpu);
    if (!cpu)
        return FAIL(ST_NO_MEMORY, "out of memory while the CPU device was opened");
    int threads = options->threads > 0 ? options->threads : cpu_count();
    if (!blas_api()->reentrant)
        threads = 1;
    status st = pool_new(threads, &cpu->pool);
    if (st != ST_OK) {
        free(cpu);
        return st;
    }
    cpu->base.backend = &backend_cpu;
    cpu->memory = memory.total;
    snprintf(cpu->base.memory_name, sizeof cpu->base.memory_name, "%s%s", memory.machine,
             memory.group);
    const char *set = cpu_has_avx2() ? ", AVX2" : "";
    char name[64];
    cpu_model_name(name, sizeof name);
    snprintf(cpu->base.description, sizeof cpu->base.description,
             "%s, %d thread%s%s, OpenBLAS %s%s", name, threads, threads == 1 ? "" : "s", set,
             blas_api()->core, blas_api()->reentrant ? "" : " (OpenMP flavour: one thread only)");
    *out = &cpu->base;
    return ST_OK;
}

static void cpu_close(device *dev)
{
    pool_free(&((cpu_device *)dev)->pool);
    free(dev);
}

static status cpu_alloc(device *dev, size_t bytes, void **out)
{
    dev->counts.allocations++;
    void *array = NULL;
    if (posix_memalign(&array, DEVICE_ALIGN, bytes ? bytes : 1) != 0)
        return FAIL(ST_NO_MEMORY, "out of memory: %zu bytes cannot be allocated", bytes);
    memset(array, 0, bytes);
    *out = array;
    return ST_OK;
}

static void cpu_release(device *dev, void *array)
{
    (void)dev;
    free(array);
}

static status cpu_stream_new(device *dev, stream **out)
{
    cpu_stream *own = calloc(1, sizeof *own);
    if (!own)
        return FAIL(ST_NO_MEMORY, "out of memory for a stream");
    own->base.dev = dev;
    own->base.ops = dev->ops;
    *out = &own->base;
    return ST_OK;
}

static void cpu_stream_free(stream **queue)
{
    if (!*queue)
        return;
    cpu_stream *own = (cpu_stream *)*queue;
    free(own->scratch);
    free(own);
    *queue = NULL;
}

static status cpu_copy(stream *queue, void *dst, const void *src, size_t bytes)
{
    (void)queue;
    if (bytes)
        memmove(dst, src, bytes);
    return ST_OK;
}

static status cpu_zero(stream *queue, void *dst, size_t bytes)
{
    (void)queue;
    if (bytes)
        memset(dst, 0, bytes);
    return ST_OK;
}

static status cpu_wait(stream *queue)
{
    queue->dev->counts.waits++;
    return ST_OK;
}

/* Work has run when its call returns, so an event is only the time at which it was recorded. */
struct event {
    int64_t ns;
};

static status cpu_event_new(device *dev, event **out)
{
    (void)dev;
    event *moment = calloc(1, sizeof *moment);
    if (!moment)
        return FAIL(ST_NO_MEMORY, "out of memory for an event");
    *out = moment;
    return ST_OK;
}

static void cpu_event_free(event **moment)
{
    free(*moment);
    *moment = NULL;
}

static status cpu_event_record(stream *queue, event *moment)
{
    (void)queue;
    moment->ns = clock_ns();
    return ST_OK;
}

static status cpu_event_follow(stream *queue, event *moment)
{
    (void)queue;
    (void)moment;
    return ST_OK;
}

static status cpu_event_wait(device *dev, event *moment)
{
    (void)moment;
    dev->counts.event_waits++;
    return ST_OK;
}

static status cpu_event_ns(event *from, event *to, int64_t *out_ns)
{
    *out_ns = to->ns - from->ns;
    return ST_OK;
}

/* *out_used is this process's resident memory without the files it has mapped (libraries, a
 * recording, weights that are being read), because the kernel can drop those. *out_total is the
 * machine's memory, or the limit of a cgroup if that is less. */
static status cpu_memory(device *dev, size_t *out_used, size_t *out_total)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0, files = 0;
    int count = file ? fscanf(file, "%*u %llu %llu", &pages, &files) : 0;
    if (file)
        fclose(file);
    if (count != 2 || files > pages)
        return FAIL(
            ST_OS,
            "/proc/self/statm does not give this process's resident size (is /proc mounted?)");
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *out_used = (size_t)(pages - files) * page;
    *out_total = ((const cpu_device *)dev)->memory;
    return ST_OK;
}

static status cpu_available(device *dev, size_t *out)
{
    (void)dev;
    host_memory memory;
    TRY(host_memory_read("", &memory));
    *out = memory.available;
    return ST_OK;
}

const backend_vtable backend_cpu = {
    .name = "cpu",
    .act = REAL_DTYPE,
    .acc = REAL_DTYPE,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .alloc_host = cpu_alloc,
    .release_host = cpu_release,
    .stream_new = cpu_stream_new,
    .stream_free = cpu_stream_free,
    .to_device = cpu_copy,
    .to_host = cpu_copy,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .wait = cpu_wait,
    .event_new = cpu_event_new,
    .event_free = cpu_event_free,
    .event_record = cpu_event_record,
    .event_follow = cpu_event_follow,
    .event_wait = cpu_event_wait,
    .event_ns = cpu_event_ns,
    .memory = cpu_memory,
    .available = cpu_available,
    .immediate = true,
};
