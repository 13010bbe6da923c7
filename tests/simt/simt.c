/* simt.c: the implementation of simt.h: blocks, the order in which their threads run, barriers and
 * warp operations. */
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
} m;

void simt_schedule(int schedule, uint64_t seed)
{
    m.schedule = schedule;
    m.seed = seed;
}

const char *simt_error(void)
{
    return m.error;
}

int64_t simt_clock_ns(void)
{
    enum { LOOK_NS = 100 };
    m.clock_ns += LOOK_NS;
    if (m.look)
        m.look(m.looks, m.clock_ns);
    return m.clock_ns;
}

void simt_sleep(int64_t ns)
{
    m.clock_ns += ns;
}

void simt_on_clock(void (*look)(void *, int64_t), void *context)
{
    m.look = look;
    m.looks = context;
}

void *simt_shared(void)
{
    return m.shared;
}

/* The next random bits, by splitmix64 (Steele et al. 2014). */
static uint64_t draw_bits(void)
{
    uint64_t z = m.seed + ++m.drawn * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void shuffle_order(int *list, int n)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(draw_bits() % (uint64_t)(i + 1)), keep = list[i];
        list[i] = list[j];
        list[j] = keep;
    }
}

/* Ends the launch: simt_run returns, and the fibers stay where they are. */
static void __attribute__((format(printf, 1, 2), noreturn)) fail(const char *fmt, ...)
{
    int n = snprintf(m.error, sizeof m.error, "block (%u, %u, %u): ", blockIdx.x, blockIdx.y,
                     blockIdx.z);
    va_list list;
    va_start(list, fmt);
    vsnprintf(m.error + n, sizeof m.error - (size_t)n, fmt, list);
    va_end(list);
    m.failed = true;
    fiber_switch(m.thread[m.self].fiber, NULL);
    abort(); /* no fiber switches back here */
}

/* Notes that thread t can run. In the forward and reverse schedules, the first in order goes before
 * all others, so that a warp runs as far ahead of the rest as barriers let it. In the random
 * schedule every thread gets a turn in each round. */
static void set_ready(int t)
{
    int place = m.schedule == SIMT_REVERSE ? m.threads - 1 - t : t;
    m.thread[t].state = READY;
    if (m.schedule != SIMT_RANDOM && place < m.cursor)
        m.cursor = place;
}

/* The next thread to run, or -1 if none can. */
static int next_thread(void)
{
    for (int round = 0; round < 2; round++) {
        while (m.cursor < m.threads) {
            int t = m.order[m.cursor++];
            if (m.thread[t].state == READY)
                return t;
        }
        m.cursor = 0;
        if (m.schedule == SIMT_RANDOM)
            shuffle_order(m.order, m.threads);
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
    const thread *a = NULL;
    int at = 0;
    for (int i = 0; i < m.threads && !a; i++)
        if (m.thread[i].state != LEFT) {
            a = m.thread + i;
            at = i;
        }
    if (a->state == AT_WARP)
        for (unsigned lane = 0; lane < WARP; lane++) {
            int t = at / WARP * WARP + (int)lane;
            const thread *b = m.thread + t;
            if (!(a->mask >> lane & 1))
                continue;
            if (t >= m.threads)
                fail("thread %d waits at %s:%d for lane %u, which this block does not have", at,
                     base_name(a->file), a->line, lane);
            if (b->state == LEFT)
                fail("thread %d waits at %s:%d for lane %u, which has returned", at,
                     base_name(a->file), a->line, lane);
            if (b->state != AT_WARP || b->mask != a->mask || b->kind != a->kind ||
                b->line != a->line)
                fail("thread %d waits at %s:%d with mask %08x for lane %u, which is at %s:%d", at,
                     base_name(a->file), a->line, a->mask, lane, base_name(b->file), b->line);
        }
    for (int i = 0; i < m.threads; i++) {
        const thread *b = m.thread + i;
        if (b->state == LEFT)
            fail("thread %d waits at the barrier %s:%d, but thread %d has returned", at,
                 base_name(a->file), a->line, i);
        if (b->state != a->state)
            fail("thread %d waits at the barrier %s:%d, but thread %d is at %s:%d", at,
                 base_name(a->file), a->line, i, base_name(b->file), b->line);
    }
    fail("thread %d waits at %s:%d for ever", at, base_name(a->file), a->line);
}

static void resume_self(int t)
{
    m.self = t;
    threadIdx = m.thread[t].index;
}

static void fiber_body(void);

/* Switches to thread t, which must not be on this fiber. */
static void go_to(fiber *from, int t)
{
    if (!m.thread[t].fiber)
        m.thread[t].fiber = m.n_idle ? m.idle[--m.n_idle] : (m.n_fibers++, fiber_new(fiber_body));
    resume_self(t);
    fiber_switch(from, m.thread[t].fiber);
}

/* Called when the running thread has noted what it waits for. Returns when it may run again. */
static void give_way(void)
{
    int self = m.self, t = next_thread();
    if (t < 0)
        fail_stuck();
    if (t != self)
        go_to(m.thread[self].fiber, t);
}

/* Runs threads one after the other. Threads that never wait need no switch of fibers. */
static void fiber_body(void)
{
    for (;;) {
        m.body(m.context);
        thread *done = m.thread + m.self;
        fiber *self = done->fiber;
        done->fiber = NULL;
        done->state = LEFT;
        m.left++;
        int t = m.left == m.threads ? -1 : next_thread();
        if (t < 0 && m.left < m.threads) {
            done->fiber = self; /* the message is written on this stack */
            fail_stuck();
        }
        if (t >= 0 && !m.thread[t].fiber) {
            m.thread[t].fiber = self;
            resume_self(t);
            continue;
        }
        m.idle[m.n_idle++] = self;
        if (t < 0)
            fiber_switch(self, NULL);
        else
            go_to(self, t);
        /* The fiber that switched here has made m.self the running thread. */
    }
}

void simt_stop(const char *condition, const char *file, int line)
{
    fail("thread %d: %s:%d: the check %s failed", m.self, base_name(file), line, condition);
}

void simt_barrier(const char *file, int line)
{
    thread *self = m.thread + m.self;
    self->state = AT_BARRIER;
    self->file = file;
    self->line = line;
    if (++m.at_barrier == m.threads) {
        for (int i = 0; i < m.threads; i++) {
            const thread *b = m.thread + i;
            if (b->line != line || strcmp(b->file, file) != 0)
                fail("thread %d is at the barrier %s:%d, thread %d at %s:%d", m.self,
                     base_name(file), line, i, base_name(b->file), b->line);
        }
        m.at_barrier = 0;
        for (int i = 0; i < m.threads; i++)
            set_ready(i);
    }
    give_way();
}

/* The lane that a shuffle reads: one of the same group, or the lane itself. */
static unsigned source_lane(const thread *t, unsigned lane)
{
    unsigned first = lane & ~(t->width - 1), last = first + t->width - 1, from;
    switch (t->kind) {
    case SIMT_UP:
        return lane >= first + t->operand ? lane - t->operand : lane;
    case SIMT_DOWN:
        return lane + t->operand <= last ? lane + t->operand : lane;
    case SIMT_XOR:
        from = lane ^ t->operand;
        return from <= last ? from : lane;
    default:
        return first + (t->operand & (t->width - 1));
    }
}

static uint64_t reduce_pair(int kind, uint64_t a, uint64_t b)
{
    uint32_t x = (uint32_t)a, y = (uint32_t)b;
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
        thread *t = warp + lane;
        if (!(mask >> lane & 1))
            continue;
        if (kind == SIMT_BALLOT)
            all |= (uint64_t)(t->value != 0) << lane;
        else if (kind >= SIMT_ADD)
            all = first ? (uint32_t)t->value : reduce_pair(kind, all, t->value);
        first = false;
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        thread *t = warp + lane;
        if (!(mask >> lane & 1))
            continue;
        t->result = all;
        if (kind >= SIMT_INDEX && kind <= SIMT_XOR) {
            unsigned from = source_lane(t, lane);
            if (!(mask >> from & 1))
                fail("lane %u shuffles from lane %u at %s:%d, which is not in the mask %08x", lane,
                     from, base_name(t->file), t->line, mask);
            t->result = warp[from].value;
        }
        set_ready((int)(t - m.thread));
    }
}

uint64_t simt_warp(int kind, unsigned mask, uint64_t value, unsigned operand, unsigned width,
                   const char *file, int line)
{
    int first = m.self / WARP * WARP, lanes = m.threads - first < WARP ? m.threads - first : WARP;
    thread *warp = m.thread + first, *self = m.thread + m.self;
    self->file = file;
    self->line = line;
    if (!(mask >> (m.self - first) & 1))
        fail("lane %d at %s:%d is not in its own mask %08x", m.self - first, base_name(file), line,
             mask);
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
    m.left = m.at_barrier = 0;
    simt_dim at = {0, 0, 0};
    for (int i = 0; i < m.threads; i++) {
        m.thread[i] = (thread){.state = READY, .index = at};
        m.order[i] = m.schedule == SIMT_REVERSE ? m.threads - 1 - i : i;
        if (++at.x == blockDim.x) {
            at.x = 0;
            if (++at.y == blockDim.y) {
                at.y = 0;
                at.z++;
            }
        }
    }
    if (m.schedule == SIMT_RANDOM)
        shuffle_order(m.order, m.threads);
    m.cursor = 0;
    go_to(NULL, next_thread());
}

/* Frees the fibers, which were left in the middle of a kernel and cannot be used again. */
static void drop_fibers(void)
{
    for (int i = 0; i < m.threads; i++)
        fiber_free(m.thread[i].fiber);
    while (m.n_idle)
        fiber_free(m.idle[--m.n_idle]);
    m.n_fibers = 0;
}

static int64_t *block_order(int64_t n)
{
    int64_t *list = malloc((size_t)n * sizeof *list);
    if (!list)
        abort();
    for (int64_t i = 0; i < n; i++)
        list[i] = m.schedule == SIMT_REVERSE ? n - 1 - i : i;
    for (int64_t i = n - 1; i > 0 && m.schedule == SIMT_RANDOM; i--) {
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
        snprintf(m.error, sizeof m.error,
                 "grid (%u, %u, %u) of blocks (%u, %u, %u) with %zu bytes of shared memory is no "
                 "launch",
                 grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
        return false;
    }
    if (m.running) /* a kernel launches a kernel */
        abort();
    m.running = true;
    m.failed = false;
    m.body = body;
    m.context = context;
    m.threads = (int)threads;
    m.drawn = 0;
    blockDim = block;
    gridDim = grid;
    m.shared = NULL;
    if (shared && posix_memalign(&m.shared, SHARED_ALIGN, shared) != 0)
        abort();
    int64_t n = (int64_t)grid.x * grid.y * grid.z, *order = block_order(n);
    for (int64_t i = 0; i < n && !m.failed; i++) {
        int64_t b = order[i];
        blockIdx = (simt_dim){(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                              (unsigned)(b / grid.x / grid.y)};
        if (shared)
            memset(m.shared, 0xff, shared);
        run_block();
    }
    free(order);
    free(m.shared);
    if (m.failed)
        drop_fibers();
    m.running = false;
    return !m.failed;
}
