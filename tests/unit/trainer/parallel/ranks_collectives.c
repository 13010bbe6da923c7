/* SPDX-License-Identifier: Apache-2.0 */
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
    block array = {.bytes = bytes};
    void *peer;
    MUST(on->dev->backend->alloc(on->dev, (size_t)bytes + 2 * GUARD, &peer));
    array.at = (char *)peer + GUARD;
    array.host = malloc((size_t)bytes + 2 * GUARD);
    memset(array.host, GUARD_BYTE, (size_t)bytes + 2 * GUARD);
    array.host += GUARD;
    return array;
}

static void block_send(block *array)
{
    MUST(on->dev->backend->to_device(on, array->at - GUARD, array->host - GUARD,
                                     (size_t)array->bytes + 2 * GUARD));
    MUST(on->dev->backend->wait(on));
}

static void block_fetch(block *array, const char *what)
{
    MUST(on->dev->backend->to_host(on, array->host - GUARD, array->at - GUARD,
                                   (size_t)array->bytes + 2 * GUARD));
    MUST(on->dev->backend->wait(on));
    for (int i = 0; i < GUARD; i++)
        if ((unsigned char)array->host[-1 - i] != GUARD_BYTE ||
            (unsigned char)array->host[array->bytes + i] != GUARD_BYTE) {
            log_error("%s: bytes beside the buffer were written", what);
            exit(1);
        }
}

static void block_free(block *array)
{
    on->dev->backend->release(on->dev, array->at - GUARD);
    free(array->host - GUARD);
}

/* ---- values ---- */

/* Element index as rank rank has it; below 100, so that the sum over 8 ranks fits U8. */
static int compute_value(int rank, int64_t index)
{
    return (int)((index * 7 + rank * 3 + 1) % 13);
}

static void store_value(char *at, st_dtype dtype, int64_t index, int value)
{
    union {
        float single;
        uint32_t bits;
    } either = {.single = (float)value};
    switch (dtype) {
    case DT_F32:
        ((float *)at)[index] = (float)value;
        break;
    case DT_F64:
        ((double *)at)[index] = value;
        break;
    case DT_I32:
        ((int32_t *)at)[index] = value;
        break;
    case DT_I64:
        ((int64_t *)at)[index] = value;
        break;
    case DT_BF16:
        ((uint16_t *)at)[index] = (uint16_t)(either.bits >> 16);
        break;
    default:
        ((uint8_t *)at)[index] = (uint8_t)value;
    }
}

/* Ends the program unless element index of `at` is value. */
static void expect_element(const char *at, st_dtype dtype, int64_t index, int value,
                           const comm *group, const char *what)
{
    char wanted[8];
    size_t size = st_dtype_size(dtype);
    store_value(wanted, dtype, 0, value);
    checked++;
    if (memcmp(wanted, at + (size_t)index * size, size) == 0)
        return;
    log_error("%s over %s (%d ranks) in %s: element %" PRId64 " is not %d", what, group->name,
              group->size, st_dtype_name(dtype), index, value);
    exit(1);
}

static comm_at label_call(const char *what)
{
    return (comm_at){what, 3};
}

/* ---- the collectives ---- */

static void check_gather(const comm *group, int64_t count, st_dtype dtype, bool in_place)
{
    int64_t bytes = count * (int64_t)st_dtype_size(dtype);
    block send = block_new(bytes), recv = block_new(bytes * group->size);
    char *own = recv.host + group->rank * bytes;
    for (int64_t i = 0; i < count; i++) {
        store_value(send.host, dtype, i, compute_value(group->world_rank[group->rank], i));
        if (in_place)
            store_value(own, dtype, i, compute_value(group->world_rank[group->rank], i));
    }
    block_send(&send);
    block_send(&recv);
    MUST(comm_all_gather(group, on, label_call("gather"),
                         in_place ? recv.at + group->rank * bytes : send.at, recv.at, count,
                         dtype));
    block_fetch(&recv, "gather");
    for (int peer = 0; peer < group->size; peer++)
        for (int64_t i = 0; i < count; i++)
            expect_element(recv.host + peer * bytes, dtype, i,
                           compute_value(group->world_rank[peer], i), group, "gather");
    block_free(&send);
    block_free(&recv);
}

static int sum_of(const comm *group, int64_t index, comm_reduction reduction)
{
    int sum = compute_value(group->world_rank[0], index);
    for (int peer = 1; peer < group->size; peer++) {
        int value = compute_value(group->world_rank[peer], index);
        sum = reduction == COMM_SUM ? sum + value : value > sum ? value : sum;
    }
    return sum;
}

static void check_scatter(const comm *group, int64_t count, st_dtype dtype, bool in_place)
{
    int64_t bytes = count * (int64_t)st_dtype_size(dtype);
    block send = block_new(bytes * group->size), recv = block_new(bytes);
    for (int64_t i = 0; i < count * group->size; i++)
        store_value(send.host, dtype, i, compute_value(group->world_rank[group->rank], i));
    block_send(&send);
    block_send(&recv);
    char *to = in_place ? send.at + group->rank * bytes : recv.at;
    MUST(comm_reduce_scatter(group, on, label_call("scatter"), send.at, to, count, dtype));
    block_fetch(&send, "scatter");
    block_fetch(&recv, "scatter");
    const char *got = in_place ? send.host + group->rank * bytes : recv.host;
    for (int64_t i = 0; i < count; i++)
        expect_element(got, dtype, i, sum_of(group, group->rank * count + i, COMM_SUM), group,
                       "scatter");
    block_free(&send);
    block_free(&recv);
}

static void check_reduce(const comm *group, int64_t count, st_dtype dtype, comm_reduction reduction)
{
    block array = block_new(count * (int64_t)st_dtype_size(dtype));
    for (int64_t i = 0; i < count; i++)
        store_value(array.host, dtype, i, compute_value(group->world_rank[group->rank], i));
    block_send(&array);
    MUST(comm_all_reduce(group, on, label_call("reduce"), array.at, count, dtype, reduction));
    block_fetch(&array, "reduce");
    for (int64_t i = 0; i < count; i++)
        expect_element(array.host, dtype, i, sum_of(group, i, reduction), group, "reduce");
    block_free(&array);
}

static void broadcast(const comm *group, int64_t count, st_dtype dtype, int root)
{
    block array = block_new(count * (int64_t)st_dtype_size(dtype));
    for (int64_t i = 0; i < count; i++)
        store_value(array.host, dtype, i, compute_value(group->world_rank[group->rank], i));
    block_send(&array);
    MUST(comm_broadcast(group, on, label_call("broadcast"), array.at, count, dtype, root));
    block_fetch(&array, "broadcast");
    for (int64_t i = 0; i < count; i++)
        expect_element(array.host, dtype, i, compute_value(group->world_rank[root], i), group,
                       "broadcast");
    block_free(&array);
}

/* How many elements rank `sender` gives to rank `taker`: uneven numbers, sometimes none, and some
 * to itself.
 */
static int64_t given(const comm *group, int sender, int taker, int64_t count)
{
    int from = group->world_rank[sender], to = group->world_rank[taker];
    return (from + to) % 3 == 0 ? 0 : count * ((from * 5 + to * 3) % 4) / 2 + (from + to) % 2;
}

/* Leaves holes between the parts of different ranks, which the collective must not touch. */
static void all_to_all(const comm *group, int64_t count, st_dtype dtype)
{
    enum { HOLE = 3, MOST = 16 };
    int64_t send_first[MOST], send_count[MOST], recv_first[MOST], recv_count[MOST];
    int64_t sent = 0, got = 0, size = (int64_t)st_dtype_size(dtype);
    for (int peer = 0; peer < group->size; peer++) {
        send_first[peer] = sent;
        recv_first[peer] = got;
        send_count[peer] = given(group, group->rank, peer, count);
        recv_count[peer] = given(group, peer, group->rank, count);
        sent += send_count[peer] + HOLE;
        got += recv_count[peer] + HOLE;
    }
    block send = block_new(sent * size), recv = block_new(got * size);
    for (int peer = 0; peer < group->size; peer++)
        for (int64_t i = 0; i < send_count[peer]; i++)
            store_value(send.host, dtype, send_first[peer] + i,
                        compute_value(group->world_rank[group->rank] + 5 * peer, i));
    for (int64_t i = 0; i < got; i++)
        store_value(recv.host, dtype, i, 77);
    block_send(&send);
    block_send(&recv);
    MUST(comm_all_to_all(group, on, label_call("exchange"), send.at, send_first, send_count,
                         recv.at, recv_first, recv_count, dtype));
    block_fetch(&recv, "exchange");
    for (int peer = 0; peer < group->size; peer++) {
        for (int64_t i = 0; i < recv_count[peer]; i++)
            expect_element(recv.host, dtype, recv_first[peer] + i,
                           compute_value(group->world_rank[peer] + 5 * group->rank, i), group,
                           "exchange");
        for (int64_t i = 0; i < HOLE; i++)
            expect_element(recv.host, dtype, recv_first[peer] + recv_count[peer] + i, 77, group,
                           "exchange");
    }
    block_free(&send);
    block_free(&recv);
}

/* Every rank sends to the next and receives from the one before, all at once; then the first and
 * the last exchange two messages one after the other. */
static void neighbours(const comm *group, int64_t count, st_dtype dtype)
{
    int64_t bytes = count * (int64_t)st_dtype_size(dtype);
    int next = (group->rank + 1) % group->size,
        before = (group->rank + group->size - 1) % group->size;
    block send = block_new(bytes), recv = block_new(bytes);
    for (int64_t i = 0; i < count; i++)
        store_value(send.host, dtype, i, compute_value(group->world_rank[group->rank], i));
    block_send(&send);
    block_send(&recv);
    MUST(comm_begin(group, on));
    MUST(comm_send(group, on, label_call("send on"), send.at, count, dtype, next));
    MUST(comm_recv(group, on, label_call("send on"), recv.at, count, dtype, before));
    MUST(comm_end(group, on));
    block_fetch(&recv, "send on");
    for (int64_t i = 0; i < count; i++)
        expect_element(recv.host, dtype, i, compute_value(group->world_rank[before], i), group,
                       "send on");
    if (group->rank == 0) {
        MUST(comm_send(group, on, label_call("send"), send.at, count, dtype, group->size - 1));
        MUST(comm_recv(group, on, label_call("send back"), recv.at, count, dtype, group->size - 1));
        block_fetch(&recv, "send back");
        for (int64_t i = 0; i < count; i++)
            expect_element(recv.host, dtype, i,
                           compute_value(group->world_rank[group->size - 1], i), group,
                           "send back");
    } else if (group->rank == group->size - 1) {
        MUST(comm_recv(group, on, label_call("send"), recv.at, count, dtype, 0));
        MUST(comm_send(group, on, label_call("send back"), send.at, count, dtype, 0));
        MUST(on->dev->backend->wait(on)); /* `send` is read until then */
    }
    block_free(&send);
    block_free(&recv);
}

static void host_values(const comm *group)
{
    int32_t own = 100 + group->world_rank[group->rank], all[16] = {0};
    MUST(comm_host_all_gather(group, label_call("host gather"), &own, all, sizeof own));
    for (int peer = 0; peer < group->size; peer++)
        expect_element((char *)all, DT_I32, peer, 100 + group->world_rank[peer], group,
                       "host gather");
    MUST(comm_host_broadcast(group, label_call("host broadcast"), &own, sizeof own,
                             group->size - 1));
    expect_element((char *)&own, DT_I32, 0, 100 + group->world_rank[group->size - 1], group,
                   "host broadcast");
}

/* Terms of such different size that a sum in another order would have other bits. */
static float term(int rank, int64_t index)
{
    return ldexpf(1.0f + (float)(index % 97) / 97.0f, (rank * 11 + (int)(index % 5) * 7) % 30);
}

static void order(const comm *group, int64_t count)
{
    block array = block_new(count * group->size * (int64_t)sizeof(float));
    block mine = block_new(count * (int64_t)sizeof(float));
    float *value = (float *)array.host, *summed = (float *)mine.host;
    for (int64_t i = 0; i < count * group->size; i++)
        value[i] = term(group->rank, i);
    block_send(&array);
    block_send(&mine);
    MUST(comm_reduce_scatter(group, on, label_call("order"), array.at, mine.at, count, DT_F32));
    MUST(comm_all_reduce(group, on, label_call("order"), array.at, count * group->size, DT_F32,
                         COMM_SUM));
    block_fetch(&array, "order");
    block_fetch(&mine, "order");
    for (int64_t i = 0; i < count * group->size; i++) {
        float sum = term(0, i);
        for (int peer = 1; peer < group->size; peer++)
            sum += term(peer, i);
        int64_t here = i - group->rank * count;
        if (memcmp(&sum, &value[i], sizeof sum) != 0 ||
            (here >= 0 && here < count && memcmp(&sum, &summed[here], sizeof sum) != 0)) {
            log_error("sum over %s: element %" PRId64 " is not summed in rank order", group->name,
                      i);
            exit(1);
        }
        checked++;
    }
    block_free(&array);
    block_free(&mine);
}

static void check_group(const comm *group)
{
    static const st_dtype dtypes[] = {DT_F32, DT_F64, DT_BF16, DT_I32, DT_I64, DT_U8};
    static const int64_t counts[] = {0, 1, 7, 1000};
    /* Nothing crosses between ranks in a group of one. */
    if (group->size == 1)
        return;
    for (size_t dtype = 0; dtype < sizeof dtypes / sizeof *dtypes; dtype++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            st_dtype kind = dtypes[dtype];
            int64_t count = counts[k];
            check_gather(group, count, kind, false);
            check_gather(group, count, kind, true);
            broadcast(group, count, kind, group->size - 1);
            all_to_all(group, count, kind);
            neighbours(group, count, kind);
            if (kind == DT_BF16)
                continue;
            check_scatter(group, count, kind, false);
            check_scatter(group, count, kind, true);
            check_reduce(group, count, kind, COMM_SUM);
            check_reduce(group, count, kind, COMM_MAX);
        }
    host_values(group);
    order(group, 1001);
}

/* Sums more elements than the engine takes at a time. */
static void check_long(const comm *group)
{
    int64_t count = 3 * (1 << 20) / group->size + 5;
    check_reduce(group, count, DT_F32, COMM_SUM);
    check_scatter(group, count, DT_F32, true);
}

static void check_mesh(const world *job, layout degrees)
{
    mesh ranks;
    degrees.world =
        degrees.replicate * degrees.shard * degrees.context * degrees.tensor * degrees.pipeline;
    degrees.accumulation = 1;
    MUST(mesh_open(&degrees, job->place.rank, job->engine, job->joined, NULL, &ranks));
    for (int group = 0; group < MESH_GROUPS; group++)
        check_group(mesh_comm(&ranks, (mesh_group)group));
    mesh_close(&ranks);
}

static void expect_tally(const comm *group, comm_kind kind, const char *what, int64_t calls,
                         int64_t bytes)
{
    const comm_tally *tally = comm_ledger_find(group->ledger, group->name, kind, what);
    if (!tally || tally->step_calls != calls || tally->step_bytes != bytes) {
        log_error("ledger: %s of %s over %s: %" PRId64 " calls and %" PRId64
                  " bytes, wanted %" PRId64 " and %" PRId64,
                  comm_kind_name(kind), what, group->name, tally ? tally->step_calls : -1,
                  tally ? tally->step_bytes : -1, calls, bytes);
        exit(1);
    }
    checked++;
}

/* Compares the ledger with the formulas of comm_ledger.h, step by step, by group and purpose. */
static void check_ledger(const world *job, const layout *degrees)
{
    mesh ranks;
    MUST(mesh_open(degrees, job->place.rank, job->engine, job->joined, job->ledger, &ranks));
    const comm *group = mesh_comm(&ranks, MESH_WORLD);
    const int64_t peers = group->size, count = 1001,
                  first = group->rank * ((count + peers - 1) / peers);
    const int64_t each = (count + peers - 1) / peers,
                  own = first + each < count ? each : count - first;
    int64_t received = 0;
    for (int peer = 0; peer < peers; peer++)
        received += peer == group->rank ? 0 : given(group, peer, group->rank, count);
    for (int step = 1; step <= 2; step++) { /* the ledger of step 2 does not include step 1 */
        for (int k = 0; k < step; k++)
            check_gather(group, count, DT_F32, false);
        check_scatter(group, count, DT_F64, false);
        check_reduce(group, count, DT_F32, COMM_SUM);
        broadcast(group, count, DT_I32, 0);
        all_to_all(group, count, DT_BF16);
        comm_ledger_close_step(group->ledger);
        expect_tally(group, COMM_ALL_GATHER, "gather", step, step * (peers - 1) * count * 4);
        expect_tally(group, COMM_REDUCE_SCATTER, "scatter", 1, (peers - 1) * count * 8);
        expect_tally(group, COMM_ALL_REDUCE, "reduce", 1, ((peers - 1) * own + count - own) * 4);
        expect_tally(group, COMM_BROADCAST, "broadcast", 1, group->rank ? count * 4 : 0);
        expect_tally(group, COMM_ALL_TO_ALL, "exchange", 1, received * 2);
    }
    comm_now now = comm_ledger_now(group->ledger);
    if (now.inside || strcmp(now.what, "exchange") != 0 || now.layer != 3) {
        log_error("ledger: the last call was %s of layer %" PRId64, now.what, now.layer);
        exit(1);
    }
    mesh_close(&ranks);
}

static void check_all(const world *job)
{
    int64_t world_size = job->place.size;
    mesh ranks;
    layout flat = {.replicate = 1,
                   .shard = world_size,
                   .context = 1,
                   .tensor = 1,
                   .pipeline = 1,
                   .expert = 1,
                   .expert_tensor = 1,
                   .world = world_size,
                   .accumulation = 1};
    check_mesh(job, flat);
    check_ledger(job, &flat);
    if (world_size % 4 == 0)
        check_mesh(job, (layout){1, world_size / 4, 2, 2, 1, world_size / 2, 1, 0, 0});
    if (world_size % 4 == 0)
        check_mesh(job, (layout){2, world_size / 4, 1, 1, 2, world_size / 4, 1, 0, 0});
    MUST(mesh_open(&flat, job->place.rank, job->engine, job->joined, NULL, &ranks));
    check_long(mesh_comm(&ranks, MESH_WORLD));
    mesh_close(&ranks);
}

int main(int argc, char **argv)
{
    conf options;
    device *dev;
    world job;
    MUST(conf_load(&options, &argc, argv));
    log_init("ranks", LOG_INFO, false);
    MUST(world_open(&options, &job));
    bool emulated = argc > 1 && strcmp(argv[1], "emulated") == 0;
    device_options how = {.threads = 1};
    MUST(emulated ? emulated_open(0, false, &dev) : device_open(BACKEND_CPU, &how, &dev));
    MUST(world_attach(&job, dev));
    MUST(dev->backend->stream_new(dev, &on));
    check_all(&job);
    dev->backend->stream_free(&on);
    world_detach(&job);
    device_close(&dev);
    MUST(world_close(&job, ST_OK));
    printf("%" PRId64 " values are right\n", checked);
    conf_done(&options);
    return 0;
}
