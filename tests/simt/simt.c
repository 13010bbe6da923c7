/* SPDX-License-Identifier: Apache-2.0 */
/* simt.c: the implementation of simt.h: blocks, the order in which their threads run, barriers and
 * warp operations. Letters: x, y, z the axes of a grid. */
#include "tests/simt/simt.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simt/fiber.h"

enum { WARP = 32, THREADS_MAX = 1024, SHARED_MAX = 227 << 10, SHARED_ALIGN = 1024 };

enum { READY, AT_BARRIER, AT_WARP, LEFT };

typedef struct thread {
    int state;
    fiber *fiber; /* NULL: the thread has not begun */
    simt_dim index;
    const char *file; /* where in the source it waits */
    int line;
    /* The thread's part of a warp operation. */
    int kind;
    unsigned mask, operand, width;
    uint64_t value, result;
} thread;

int64_t simt_products;
simt_dim threadIdx, blockIdx, blockDim, gridDim;

static struct {
    int schedule;
    uint64_t seed, drawn;
    bool running, failed;
    char error[512];
    void (*body)(const void *);
    const void *context;
    void *shared;
    /* The block that runs now. */
    int threads, left, at_barrier;
    int self;   /* the running thread */
    int cursor; /* place in order[]; a round ends at `threads` */
    int order[THREADS_MAX];
    thread thread[THREADS_MAX];
    fiber *idle[THREADS_MAX]; /* fibers that no thread uses now */
    int n_idle, n_fibers;
    int64_t clock_ns;
    void (*look)(void *, int64_t);
    void *looks;
} machine;

void simt_schedule(int schedule, uint64_t seed)
{
    machine.schedule = schedule;
    machine.seed = seed;
}

const char *simt_error(void)
{
    return machine.error;
}

int64_t simt_clock_ns(void)
{
    enum { LOOK_NS = 100 };
    machine.clock_ns += LOOK_NS;
    if (machine.look)
        machine.look(machine.looks, machine.clock_ns);
    return machine.clock_ns;
}

void simt_sleep(int64_t ns)
{
    machine.clock_ns += ns;
}

void simt_on_clock(void (*look)(void *, int64_t), void *context)
{
    machine.look = look;
    machine.looks = context;
}

void *simt_shared(void)
{
    return machine.shared;
}

/* The next random bits, by splitmix64 (Steele et al. 2014). */
static uint64_t draw_bits(void)
{
    uint64_t z = machine.seed + ++machine.drawn * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void shuffle_order(int *list, int count)
{
    for (int i = count - 1; i > 0; i--) {
        int j = (int)(draw_bits() % (uint64_t)(i + 1)), keep = list[i];
        list[i] = list[j];
        list[j] = keep;
    }
}

/* Ends the launch: simt_run returns, and the fibers stay where they are. */
static void __attribute__((format(printf, 1, 2), noreturn)) fail(const char *fmt, ...)
{
    int length = snprintf(machine.error, sizeof machine.error, "block (%u, %u, %u): ", blockIdx.x,
                          blockIdx.y, blockIdx.z);
    va_list list;
    va_start(list, fmt);
    vsnprintf(machine.error + length, sizeof machine.error - (size_t)length, fmt, list);
    va_end(list);
    machine.failed = true;
    fiber_switch(machine.thread[machine.self].fiber, NULL);
    abort(); /* no fiber switches back here */
}

/* Notes that thread at can run. In the forward and reverse schedules, the first in order goes
 * before all others, so that a warp runs as far ahead of the rest as barriers let it. In the random
 * schedule every thread gets a turn in each round. */
static void set_ready(int at)
{
    int place = machine.schedule == SIMT_REVERSE ? machine.threads - 1 - at : at;
    machine.thread[at].state = READY;
    if (machine.schedule != SIMT_RANDOM && place < machine.cursor)
        machine.cursor = place;
}

/* The next thread to run, or -1 if none can. */
static int next_thread(void)
{
    for (int round = 0; round < 2; round++) {
        while (machine.cursor < machine.threads) {
            int at = machine.order[machine.cursor++];
            if (machine.thread[at].state == READY)
                return at;
        }
        machine.cursor = 0;
        if (machine.schedule == SIMT_RANDOM)
            shuffle_order(machine.order, machine.threads);
    }
    return -1;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Fails the launch, because threads are left and none of them can run. */
static void fail_stuck(void)
{
    const thread *first = NULL;
    int at = 0;
    for (int i = 0; i < machine.threads && !first; i++)
        if (machine.thread[i].state != LEFT) {
            first = machine.thread + i;
            at = i;
        }
    if (first->state == AT_WARP)
        for (unsigned lane = 0; lane < WARP; lane++) {
            int number = at / WARP * WARP + (int)lane;
            const thread *second = machine.thread + number;
            if (!(first->mask >> lane & 1))
                continue;
            if (number >= machine.threads)
                fail("thread %d waits at %s:%d for lane %u, which this block does not have", at,
                     base_name(first->file), first->line, lane);
            if (second->state == LEFT)
                fail("thread %d waits at %s:%d for lane %u, which has returned", at,
                     base_name(first->file), first->line, lane);
            if (second->state != AT_WARP || second->mask != first->mask ||
                second->kind != first->kind || second->line != first->line)
                fail("thread %d waits at %s:%d with mask %08x for lane %u, which is at %s:%d", at,
                     base_name(first->file), first->line, first->mask, lane,
                     base_name(second->file), second->line);
        }
    for (int i = 0; i < machine.threads; i++) {
        const thread *second = machine.thread + i;
        if (second->state == LEFT)
            fail("thread %d waits at the barrier %s:%d, but thread %d has returned", at,
                 base_name(first->file), first->line, i);
        if (second->state != first->state)
            fail("thread %d waits at the barrier %s:%d, but thread %d is at %s:%d", at,
                 base_name(first->file), first->line, i, base_name(second->file), second->line);
    }
    fail("thread %d waits at %s:%d for ever", at, base_name(first->file), first->line);
}

static void resume_self(int at)
{
    machine.self = at;
    threadIdx = machine.thread[at].index;
}

static void fiber_body(void);

/* Switches to thread at, which must not be on this fiber. */
static void go_to(fiber *from, int at)
{
    if (!machine.thread[at].fiber)
        machine.thread[at].fiber = machine.n_idle ? machine.idle[--machine.n_idle]
                                                  : (machine.n_fibers++, fiber_new(fiber_body));
    resume_self(at);
    fiber_switch(from, machine.thread[at].fiber);
}

/* Called when the running thread has noted what it waits for. Returns when it may run again. */
static void give_way(void)
{
    int self = machine.self, at = next_thread();
    if (at < 0)
        fail_stuck();
    if (at != self)
        go_to(machine.thread[self].fiber, at);
}

/* Runs threads one after the other. Threads that never wait need no switch of fibers. */
static void fiber_body(void)
{
    for (;;) {
        machine.body(machine.context);
        thread *done = machine.thread + machine.self;
        fiber *self = done->fiber;
        done->fiber = NULL;
        done->state = LEFT;
        machine.left++;
        int next = machine.left == machine.threads ? -1 : next_thread();
        if (next < 0 && machine.left < machine.threads) {
            done->fiber = self; /* the message is written on this stack */
            fail_stuck();
        }
        if (next >= 0 && !machine.thread[next].fiber) {
            machine.thread[next].fiber = self;
            resume_self(next);
            continue;
        }
        machine.idle[machine.n_idle++] = self;
        if (next < 0)
            fiber_switch(self, NULL);
        else
            go_to(self, next);
        /* The fiber that switched here has made machine.self the running thread. */
    }
}

void simt_stop(const char *condition, const char *file, int line)
{
    fail("thread %d: %s:%d: the check %s failed", machine.self, base_name(file), line, condition);
}

void simt_trap(const char *file, int line)
{
    fail("thread %d: %s:%d: the kernel traps", machine.self, base_name(file), line);
}

void simt_barrier(const char *file, int line)
{
    thread *self = machine.thread + machine.self;
    self->state = AT_BARRIER;
    self->file = file;
    self->line = line;
    if (++machine.at_barrier == machine.threads) {
        for (int i = 0; i < machine.threads; i++) {
            const thread *one = machine.thread + i;
            if (one->line != line || strcmp(one->file, file) != 0)
                fail("thread %d is at the barrier %s:%d, thread %d at %s:%d", machine.self,
                     base_name(file), line, i, base_name(one->file), one->line);
        }
        machine.at_barrier = 0;
        for (int i = 0; i < machine.threads; i++)
            set_ready(i);
    }
    give_way();
}

/* The lane that a shuffle reads: one of the same group, or the lane itself. */
static unsigned source_lane(const thread *asking, unsigned lane)
{
    unsigned first = lane & ~(asking->width - 1), last = first + asking->width - 1, from;
    switch (asking->kind) {
    case SIMT_UP:
        return lane >= first + asking->operand ? lane - asking->operand : lane;
    case SIMT_DOWN:
        return lane + asking->operand <= last ? lane + asking->operand : lane;
    case SIMT_XOR:
        from = lane ^ asking->operand;
        return from <= last ? from : lane;
    default:
        return first + (asking->operand & (asking->width - 1));
    }
}

static uint64_t reduce_pair(int kind, uint64_t first, uint64_t block)
{
    uint32_t x = (uint32_t)first, y = (uint32_t)block;
    int32_t sx = (int32_t)x, sy = (int32_t)y;
    switch (kind) {
    case SIMT_ADD:
        return (uint32_t)(x + y);
    case SIMT_MIN_I32:
        return (uint32_t)(sx < sy ? sx : sy);
    case SIMT_MAX_I32:
        return (uint32_t)(sx > sy ? sx : sy);
    case SIMT_MIN_U32:
        return x < y ? x : y;
    default:
        return x > y ? x : y;
    }
}

/* Gives each lane its result, after all lanes of the mask have come. */
static void finish_warp(thread *warp, unsigned mask, int kind)
{
    uint64_t all = 0;
    bool first = true;
    for (unsigned lane = 0; lane < WARP; lane++) {
        thread *member = warp + lane;
        if (!(mask >> lane & 1))
            continue;
        if (kind == SIMT_BALLOT)
            all |= (uint64_t)(member->value != 0) << lane;
        else if (kind >= SIMT_ADD)
            all = first ? (uint32_t)member->value : reduce_pair(kind, all, member->value);
        first = false;
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        thread *member = warp + lane;
        if (!(mask >> lane & 1))
            continue;
        member->result = all;
        if (kind >= SIMT_INDEX && kind <= SIMT_XOR) {
            unsigned from = source_lane(member, lane);
            if (!(mask >> from & 1))
                fail("lane %u shuffles from lane %u at %s:%d, which is not in the mask %08x", lane,
                     from, base_name(member->file), member->line, mask);
            member->result = warp[from].value;
        }
        set_ready((int)(member - machine.thread));
    }
}

uint64_t simt_warp(int kind, unsigned mask, uint64_t value, unsigned operand, unsigned width,
                   const char *file, int line)
{
    int first = machine.self / WARP * WARP,
        lanes = machine.threads - first < WARP ? machine.threads - first : WARP;
    thread *warp = machine.thread + first, *self = machine.thread + machine.self;
    self->file = file;
    self->line = line;
    if (!(mask >> (machine.self - first) & 1))
        fail("lane %d at %s:%d is not in its own mask %08x", machine.self - first, base_name(file),
             line, mask);
    self->state = AT_WARP;
    self->kind = kind;
    self->mask = mask;
    self->operand = operand;
    self->width = width;
    self->value = value;
    bool whole = true;
    for (int lane = 0; lane < WARP && whole; lane++)
        if (mask >> lane & 1)
            whole = lane < lanes && warp[lane].state == AT_WARP && warp[lane].mask == mask &&
                    warp[lane].kind == kind && warp[lane].line == line;
    if (whole)
        finish_warp(warp, mask, kind);
    give_way();
    return self->result;
}

static void run_block(void)
{
    machine.left = machine.at_barrier = 0;
    simt_dim at = {0, 0, 0};
    for (int i = 0; i < machine.threads; i++) {
        machine.thread[i] = (thread){.state = READY, .index = at};
        machine.order[i] = machine.schedule == SIMT_REVERSE ? machine.threads - 1 - i : i;
        if (++at.x == blockDim.x) {
            at.x = 0;
            if (++at.y == blockDim.y) {
                at.y = 0;
                at.z++;
            }
        }
    }
    if (machine.schedule == SIMT_RANDOM)
        shuffle_order(machine.order, machine.threads);
    machine.cursor = 0;
    go_to(NULL, next_thread());
}

/* Frees the fibers, which were left in the middle of a kernel and cannot be used again. */
static void drop_fibers(void)
{
    for (int i = 0; i < machine.threads; i++)
        fiber_free(machine.thread[i].fiber);
    while (machine.n_idle)
        fiber_free(machine.idle[--machine.n_idle]);
    machine.n_fibers = 0;
}

static int64_t *block_order(int64_t count)
{
    int64_t *list = malloc((size_t)count * sizeof *list);
    if (!list)
        abort();
    for (int64_t i = 0; i < count; i++)
        list[i] = machine.schedule == SIMT_REVERSE ? count - 1 - i : i;
    for (int64_t i = count - 1; i > 0 && machine.schedule == SIMT_RANDOM; i--) {
        int64_t j = (int64_t)(draw_bits() % (uint64_t)(i + 1)), keep = list[i];
        list[i] = list[j];
        list[j] = keep;
    }
    return list;
}

bool simt_run(simt_dim grid, simt_dim block, size_t shared, void (*body)(const void *),
              const void *context)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (threads == 0 || threads > THREADS_MAX || block.z > 64 || grid.x == 0 || grid.y == 0 ||
        grid.z == 0 || grid.x > INT32_MAX || grid.y > UINT16_MAX || grid.z > UINT16_MAX ||
        shared > SHARED_MAX) {
        snprintf(machine.error, sizeof machine.error,
                 "grid (%u, %u, %u) of blocks (%u, %u, %u) with %zu bytes of shared memory is no "
                 "launch",
                 grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
        return false;
    }
    if (machine.running) /* a kernel launches a kernel */
        abort();
    machine.running = true;
    machine.failed = false;
    machine.body = body;
    machine.context = context;
    machine.threads = (int)threads;
    machine.drawn = 0;
    blockDim = block;
    gridDim = grid;
    machine.shared = NULL;
    if (shared && posix_memalign(&machine.shared, SHARED_ALIGN, shared) != 0)
        abort();
    int64_t count = (int64_t)grid.x * grid.y * grid.z, *order = block_order(count);
    for (int64_t i = 0; i < count && !machine.failed; i++) {
        int64_t index = order[i];
        blockIdx = (simt_dim){(unsigned)(index % grid.x), (unsigned)(index / grid.x % grid.y),
                              (unsigned)(index / grid.x / grid.y)};
        if (shared)
            memset(machine.shared, 0xff, shared);
        run_block();
    }
    free(order);
    free(machine.shared);
    if (machine.failed)
        drop_fibers();
    machine.running = false;
    return !machine.failed;
}
