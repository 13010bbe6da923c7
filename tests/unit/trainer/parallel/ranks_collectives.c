/* ranks_collectives.c: every collective of comm.h over every group of a few meshes, on the device
 * and with the engine that the command line names. mpirun runs it as each of the ranks. Values are
 * small integers times a power of two, so that sums are exact in every dtype and known beforehand;
 * sums that depend on their order are compared with the same order of additions made here.
 *
 *   ranks_collectives cpu|emulated [--section.key VALUE ..] */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "tests/emulated/emulated.h"
#include "trainer/ops/open.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/world.h"

enum { GUARD = 64, GUARD_BYTE = 0xA5 };

static stream *on;
static int64_t checked;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != ST_OK) {                                                                     \
            log_status();                                                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- device memory between guard bytes, and its copy on the host ---- */

typedef struct block {
    char *at; /* device memory, GUARD bytes on either side */
    char *host;
    int64_t bytes;
} block;

static block block_new(int64_t bytes)
{
    block b = {.bytes = bytes};
    void *p;
    MUST(on->dev->backend->alloc(on->dev, (size_t)bytes + 2 * GUARD, &p));
    b.at = (char *)p + GUARD;
    b.host = malloc((size_t)bytes + 2 * GUARD);
    memset(b.host, GUARD_BYTE, (size_t)bytes + 2 * GUARD);
    b.host += GUARD;
    return b;
}

static void block_send(block *b)
{
    MUST(on->dev->backend->to_device(on, b->at - GUARD, b->host - GUARD,
                                     (size_t)b->bytes + 2 * GUARD));
    MUST(on->dev->backend->wait(on));
}

static void block_fetch(block *b, const char *what)
{
    MUST(on->dev->backend->to_host(on, b->host - GUARD, b->at - GUARD,
                                   (size_t)b->bytes + 2 * GUARD));
    MUST(on->dev->backend->wait(on));
    for (int i = 0; i < GUARD; i++)
        if ((unsigned char)b->host[-1 - i] != GUARD_BYTE ||
            (unsigned char)b->host[b->bytes + i] != GUARD_BYTE) {
            log_error("%s: bytes beside the buffer were written", what);
            exit(1);
        }
}

static void block_free(block *b)
{
    on->dev->backend->release(on->dev, b->at - GUARD);
    free(b->host - GUARD);
}

/* ---- values ---- */

/* Element i as rank r has it; below 100, so that the sum over 8 ranks fits U8. */
static int compute_value(int r, int64_t i)
{
    return (int)((i * 7 + r * 3 + 1) % 13);
}

static void store_value(char *at, st_dtype dtype, int64_t i, int x)
{
    union {
        float f;
        uint32_t bits;
    } u = {.f = (float)x};
    switch (dtype) {
    case DT_F32:
        ((float *)at)[i] = (float)x;
        break;
    case DT_F64:
        ((double *)at)[i] = x;
        break;
    case DT_I32:
        ((int32_t *)at)[i] = x;
        break;
    case DT_I64:
        ((int64_t *)at)[i] = x;
        break;
    case DT_BF16:
        ((uint16_t *)at)[i] = (uint16_t)(u.bits >> 16);
        break;
    default:
        ((uint8_t *)at)[i] = (uint8_t)x;
    }
}

/* Ends the program unless element i of `at` is x. */
static void expect_element(const char *at, st_dtype dtype, int64_t i, int x, const comm *c,
                           const char *what)
{
    char wanted[8];
    size_t size = st_dtype_size(dtype);
    store_value(wanted, dtype, 0, x);
    checked++;
    if (memcmp(wanted, at + (size_t)i * size, size) == 0)
        return;
    log_error("%s over %s (%d ranks) in %s: element %" PRId64 " is not %d", what, c->name, c->size,
              st_dtype_name(dtype), i, x);
    exit(1);
}

static comm_at label_call(const char *what)
{
    return (comm_at){what, 3};
}

/* ---- the collectives ---- */

static void check_gather(const comm *c, int64_t n, st_dtype t, bool in_place)
{
    int64_t bytes = n * (int64_t)st_dtype_size(t);
    block send = block_new(bytes), recv = block_new(bytes * c->size);
    char *own = recv.host + c->rank * bytes;
    for (int64_t i = 0; i < n; i++) {
        store_value(send.host, t, i, compute_value(c->world_rank[c->rank], i));
        if (in_place)
            store_value(own, t, i, compute_value(c->world_rank[c->rank], i));
    }
    block_send(&send);
    block_send(&recv);
    MUST(comm_all_gather(c, on, label_call("gather"),
                         in_place ? recv.at + c->rank * bytes : send.at, recv.at, n, t));
    block_fetch(&recv, "gather");
    for (int p = 0; p < c->size; p++)
        for (int64_t i = 0; i < n; i++)
            expect_element(recv.host + p * bytes, t, i, compute_value(c->world_rank[p], i), c,
                           "gather");
    block_free(&send);
    block_free(&recv);
}

static int sum_of(const comm *c, int64_t i, comm_reduction reduction)
{
    int sum = compute_value(c->world_rank[0], i);
    for (int p = 1; p < c->size; p++) {
        int x = compute_value(c->world_rank[p], i);
        sum = reduction == COMM_SUM ? sum + x : x > sum ? x : sum;
    }
    return sum;
}

static void check_scatter(const comm *c, int64_t n, st_dtype t, bool in_place)
{
    int64_t bytes = n * (int64_t)st_dtype_size(t);
    block send = block_new(bytes * c->size), recv = block_new(bytes);
    for (int64_t i = 0; i < n * c->size; i++)
        store_value(send.host, t, i, compute_value(c->world_rank[c->rank], i));
    block_send(&send);
    block_send(&recv);
    char *to = in_place ? send.at + c->rank * bytes : recv.at;
    MUST(comm_reduce_scatter(c, on, label_call("scatter"), send.at, to, n, t));
    block_fetch(&send, "scatter");
    block_fetch(&recv, "scatter");
    const char *got = in_place ? send.host + c->rank * bytes : recv.host;
    for (int64_t i = 0; i < n; i++)
        expect_element(got, t, i, sum_of(c, c->rank * n + i, COMM_SUM), c, "scatter");
    block_free(&send);
    block_free(&recv);
}

static void check_reduce(const comm *c, int64_t n, st_dtype t, comm_reduction reduction)
{
    block b = block_new(n * (int64_t)st_dtype_size(t));
    for (int64_t i = 0; i < n; i++)
        store_value(b.host, t, i, compute_value(c->world_rank[c->rank], i));
    block_send(&b);
    MUST(comm_all_reduce(c, on, label_call("reduce"), b.at, n, t, reduction));
    block_fetch(&b, "reduce");
    for (int64_t i = 0; i < n; i++)
        expect_element(b.host, t, i, sum_of(c, i, reduction), c, "reduce");
    block_free(&b);
}

static void broadcast(const comm *c, int64_t n, st_dtype t, int root)
{
    block b = block_new(n * (int64_t)st_dtype_size(t));
    for (int64_t i = 0; i < n; i++)
        store_value(b.host, t, i, compute_value(c->world_rank[c->rank], i));
    block_send(&b);
    MUST(comm_broadcast(c, on, label_call("broadcast"), b.at, n, t, root));
    block_fetch(&b, "broadcast");
    for (int64_t i = 0; i < n; i++)
        expect_element(b.host, t, i, compute_value(c->world_rank[root], i), c, "broadcast");
    block_free(&b);
}

/* How many elements rank a gives to rank b: uneven numbers, sometimes none, and some to itself. */
static int64_t given(const comm *c, int a, int b, int64_t n)
{
    int from = c->world_rank[a], to = c->world_rank[b];
    return (from + to) % 3 == 0 ? 0 : n * ((from * 5 + to * 3) % 4) / 2 + (from + to) % 2;
}

/* Leaves holes between the parts of different ranks, which the collective must not touch. */
static void all_to_all(const comm *c, int64_t n, st_dtype t)
{
    enum { HOLE = 3, MOST = 16 };
    int64_t send_first[MOST], send_count[MOST], recv_first[MOST], recv_count[MOST];
    int64_t sent = 0, got = 0, size = (int64_t)st_dtype_size(t);
    for (int p = 0; p < c->size; p++) {
        send_first[p] = sent;
        recv_first[p] = got;
        send_count[p] = given(c, c->rank, p, n);
        recv_count[p] = given(c, p, c->rank, n);
        sent += send_count[p] + HOLE;
        got += recv_count[p] + HOLE;
    }
    block send = block_new(sent * size), recv = block_new(got * size);
    for (int p = 0; p < c->size; p++)
        for (int64_t i = 0; i < send_count[p]; i++)
            store_value(send.host, t, send_first[p] + i,
                        compute_value(c->world_rank[c->rank] + 5 * p, i));
    for (int64_t i = 0; i < got; i++)
        store_value(recv.host, t, i, 77);
    block_send(&send);
    block_send(&recv);
    MUST(comm_all_to_all(c, on, label_call("exchange"), send.at, send_first, send_count, recv.at,
                         recv_first, recv_count, t));
    block_fetch(&recv, "exchange");
    for (int p = 0; p < c->size; p++) {
        for (int64_t i = 0; i < recv_count[p]; i++)
            expect_element(recv.host, t, recv_first[p] + i,
                           compute_value(c->world_rank[p] + 5 * c->rank, i), c, "exchange");
        for (int64_t i = 0; i < HOLE; i++)
            expect_element(recv.host, t, recv_first[p] + recv_count[p] + i, 77, c, "exchange");
    }
    block_free(&send);
    block_free(&recv);
}

/* Every rank sends to the next and receives from the one before, all at once; then the first and
 * the last exchange two messages one after the other. */
static void neighbours(const comm *c, int64_t n, st_dtype t)
{
    int64_t bytes = n * (int64_t)st_dtype_size(t);
    int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size;
    block send = block_new(bytes), recv = block_new(bytes);
    for (int64_t i = 0; i < n; i++)
        store_value(send.host, t, i, compute_value(c->world_rank[c->rank], i));
    block_send(&send);
    block_send(&recv);
    MUST(comm_begin(c, on));
    MUST(comm_send(c, on, label_call("send on"), send.at, n, t, next));
    MUST(comm_recv(c, on, label_call("send on"), recv.at, n, t, before));
    MUST(comm_end(c, on));
    block_fetch(&recv, "send on");
    for (int64_t i = 0; i < n; i++)
        expect_element(recv.host, t, i, compute_value(c->world_rank[before], i), c, "send on");
    if (c->rank == 0) {
        MUST(comm_send(c, on, label_call("send"), send.at, n, t, c->size - 1));
        MUST(comm_recv(c, on, label_call("send back"), recv.at, n, t, c->size - 1));
        block_fetch(&recv, "send back");
        for (int64_t i = 0; i < n; i++)
            expect_element(recv.host, t, i, compute_value(c->world_rank[c->size - 1], i), c,
                           "send back");
    } else if (c->rank == c->size - 1) {
        MUST(comm_recv(c, on, label_call("send"), recv.at, n, t, 0));
        MUST(comm_send(c, on, label_call("send back"), send.at, n, t, 0));
        MUST(on->dev->backend->wait(on)); /* `send` is read until then */
    }
    block_free(&send);
    block_free(&recv);
}

static void host_values(const comm *c)
{
    int32_t own = 100 + c->world_rank[c->rank], all[16] = {0};
    MUST(comm_host_all_gather(c, label_call("host gather"), &own, all, sizeof own));
    for (int p = 0; p < c->size; p++)
        expect_element((char *)all, DT_I32, p, 100 + c->world_rank[p], c, "host gather");
    MUST(comm_host_broadcast(c, label_call("host broadcast"), &own, sizeof own, c->size - 1));
    expect_element((char *)&own, DT_I32, 0, 100 + c->world_rank[c->size - 1], c, "host broadcast");
}

/* Terms of such different size that a sum in another order would have other bits. */
static float term(int rank, int64_t i)
{
    return ldexpf(1.0f + (float)(i % 97) / 97.0f, (rank * 11 + (int)(i % 5) * 7) % 30);
}

static void order(const comm *c, int64_t n)
{
    block b = block_new(n * c->size * (int64_t)sizeof(float));
    block mine = block_new(n * (int64_t)sizeof(float));
    float *x = (float *)b.host, *y = (float *)mine.host;
    for (int64_t i = 0; i < n * c->size; i++)
        x[i] = term(c->rank, i);
    block_send(&b);
    block_send(&mine);
    MUST(comm_reduce_scatter(c, on, label_call("order"), b.at, mine.at, n, DT_F32));
    MUST(comm_all_reduce(c, on, label_call("order"), b.at, n * c->size, DT_F32, COMM_SUM));
    block_fetch(&b, "order");
    block_fetch(&mine, "order");
    for (int64_t i = 0; i < n * c->size; i++) {
        float sum = term(0, i);
        for (int p = 1; p < c->size; p++)
            sum += term(p, i);
        int64_t here = i - c->rank * n;
        if (memcmp(&sum, &x[i], sizeof sum) != 0 ||
            (here >= 0 && here < n && memcmp(&sum, &y[here], sizeof sum) != 0)) {
            log_error("sum over %s: element %" PRId64 " is not summed in rank order", c->name, i);
            exit(1);
        }
        checked++;
    }
    block_free(&b);
    block_free(&mine);
}

static void check_group(const comm *c)
{
    static const st_dtype dtypes[] = {DT_F32, DT_F64, DT_BF16, DT_I32, DT_I64, DT_U8};
    static const int64_t counts[] = {0, 1, 7, 1000};
    /* Nothing crosses between ranks in a group of one. */
    if (c->size == 1)
        return;
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            st_dtype t = dtypes[d];
            int64_t n = counts[k];
            check_gather(c, n, t, false);
            check_gather(c, n, t, true);
            broadcast(c, n, t, c->size - 1);
            all_to_all(c, n, t);
            neighbours(c, n, t);
            if (t == DT_BF16)
                continue;
            check_scatter(c, n, t, false);
            check_scatter(c, n, t, true);
            check_reduce(c, n, t, COMM_SUM);
            check_reduce(c, n, t, COMM_MAX);
        }
    host_values(c);
    order(c, 1001);
}

/* Sums more elements than the engine takes at a time. */
static void check_long(const comm *c)
{
    int64_t n = 3 * (1 << 20) / c->size + 5;
    check_reduce(c, n, DT_F32, COMM_SUM);
    check_scatter(c, n, DT_F32, true);
}

static void check_mesh(const world *w, layout l)
{
    mesh m;
    l.world = l.replicate * l.shard * l.context * l.tensor * l.pipeline;
    l.accumulation = 1;
    MUST(mesh_open(&l, w->place.rank, w->engine, w->joined, NULL, &m));
    for (int g = 0; g < MESH_GROUPS; g++)
        check_group(mesh_comm(&m, (mesh_group)g));
    mesh_close(&m);
}

static void expect_tally(const comm *c, comm_kind kind, const char *what, int64_t calls,
                         int64_t bytes)
{
    const comm_tally *t = comm_ledger_find(c->ledger, c->name, kind, what);
    if (!t || t->step_calls != calls || t->step_bytes != bytes) {
        log_error("ledger: %s of %s over %s: %" PRId64 " calls and %" PRId64
                  " bytes, wanted %" PRId64 " and %" PRId64,
                  comm_kind_name(kind), what, c->name, t ? t->step_calls : -1,
                  t ? t->step_bytes : -1, calls, bytes);
        exit(1);
    }
    checked++;
}

/* Compares the ledger with the formulas of comm_ledger.h, step by step, by group and purpose. */
static void check_ledger(const world *w, const layout *l)
{
    mesh m;
    MUST(mesh_open(l, w->place.rank, w->engine, w->joined, w->ledger, &m));
    const comm *c = mesh_comm(&m, MESH_WORLD);
    const int64_t n = c->size, count = 1001, first = c->rank * ((count + n - 1) / n);
    const int64_t each = (count + n - 1) / n, own = first + each < count ? each : count - first;
    int64_t received = 0;
    for (int p = 0; p < n; p++)
        received += p == c->rank ? 0 : given(c, p, c->rank, count);
    for (int step = 1; step <= 2; step++) { /* the ledger of step 2 does not include step 1 */
        for (int k = 0; k < step; k++)
            check_gather(c, count, DT_F32, false);
        check_scatter(c, count, DT_F64, false);
        check_reduce(c, count, DT_F32, COMM_SUM);
        broadcast(c, count, DT_I32, 0);
        all_to_all(c, count, DT_BF16);
        comm_ledger_close_step(c->ledger);
        expect_tally(c, COMM_ALL_GATHER, "gather", step, step * (n - 1) * count * 4);
        expect_tally(c, COMM_REDUCE_SCATTER, "scatter", 1, (n - 1) * count * 8);
        expect_tally(c, COMM_ALL_REDUCE, "reduce", 1, ((n - 1) * own + count - own) * 4);
        expect_tally(c, COMM_BROADCAST, "broadcast", 1, c->rank ? count * 4 : 0);
        expect_tally(c, COMM_ALL_TO_ALL, "exchange", 1, received * 2);
    }
    comm_now now = comm_ledger_now(c->ledger);
    if (now.inside || strcmp(now.what, "exchange") != 0 || now.layer != 3) {
        log_error("ledger: the last call was %s of layer %" PRId64, now.what, now.layer);
        exit(1);
    }
    mesh_close(&m);
}

static void check_all(const world *w)
{
    int64_t n = w->place.size;
    mesh m;
    layout flat = {.replicate = 1,
                   .shard = n,
                   .context = 1,
                   .tensor = 1,
                   .pipeline = 1,
                   .expert = 1,
                   .expert_tensor = 1,
                   .world = n,
                   .accumulation = 1};
    check_mesh(w, flat);
    check_ledger(w, &flat);
    if (n % 4 == 0)
        check_mesh(w, (layout){1, n / 4, 2, 2, 1, n / 2, 1, 0, 0});
    if (n % 4 == 0)
        check_mesh(w, (layout){2, n / 4, 1, 1, 2, n / 4, 1, 0, 0});
    MUST(mesh_open(&flat, w->place.rank, w->engine, w->joined, NULL, &m));
    check_long(mesh_comm(&m, MESH_WORLD));
    mesh_close(&m);
}

int main(int argc, char **argv)
{
    conf c;
    device *d;
    world w;
    MUST(conf_load(&c, &argc, argv));
    log_init("ranks", LOG_INFO, false);
    MUST(world_open(&c, &w));
    bool emulated = argc > 1 && strcmp(argv[1], "emulated") == 0;
    device_options o = {.threads = 1};
    MUST(emulated ? emulated_open(0, false, &d) : device_open(BACKEND_CPU, &o, &d));
    MUST(world_attach(&w, d));
    MUST(d->backend->stream_new(d, &on));
    check_all(&w);
    d->backend->stream_free(&on);
    world_detach(&w);
    device_close(&d);
    MUST(world_close(&w, ST_OK));
    printf("%" PRId64 " values are right\n", checked);
    conf_done(&c);
    return 0;
}
