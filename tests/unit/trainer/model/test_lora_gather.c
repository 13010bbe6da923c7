/* SPDX-License-Identifier: Apache-2.0 */
/* test_lora_gather.c: every rank gets all of every adapter, whatever type a rank keeps its part in
 * (a master value in act or in acc, or a frozen half, which has none) and wherever it lies. The
 * device is the CPU with BF16 as the type of weights, as a GPU has it: nothing is computed here. */
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/model/params/lora_params.h"
#include "trainer/ops/open.h"

enum { RANKS = 2, LORA_RANK = 3 };

/* One of two ranks that store everything between them. */
typedef struct part {
    backend_vtable backend;
    device *dev;
    stream *queue;
    mesh ranks;
    params *registry;
} part;

/* The other rank has zeros where this one has values, so sums are made by the test. */
static status all_reduce(const comm *group, stream *queue, void *inout, int64_t count,
                         st_dtype dtype, comm_reduction reduction)
{
    (void)group, (void)queue, (void)inout, (void)count;
    assert_int_equal(dtype, DT_F32);
    assert_int_equal(reduction, COMM_SUM);
    return ST_OK;
}

static const comm_engine engine = {.name = "test", .all_reduce = all_reduce};

/* All whole numbers that BF16 has exactly; no two rows have the same. */
static double value_of(int64_t row, int64_t element)
{
    return (double)((row * 37 + element * 3) % 251 - 125);
}

/* Freezes every lora_A; in_act: what is trained has master values in act, but for routers. */
static void choose_kinds(params *registry, bool in_act)
{
    for (int64_t i = 0; i < registry->count; i++) {
        param *row = &registry->list[i];
        row->frozen |= strstr(row->name, "lora_A") != NULL;
        row->act_master = in_act && !row->frozen && row->n_dims > 1 && row->group != GROUP_ROUTER;
    }
}

static void open_part(part *one, int rank, bool in_act)
{
    const layout degrees = {.replicate = 1,
                            .shard = RANKS,
                            .context = 1,
                            .tensor = 1,
                            .pipeline = 1,
                            .expert = 1,
                            .expert_tensor = 1,
                            .world = RANKS,
                            .accumulation = 1};
    const lora_kind kind = {.rank = LORA_RANK, .alpha = 6};
    model_dims dims;
    *one = (part){.backend = backend_cpu};
    one->backend.act = DT_BF16;
    assert_int_equal(one->backend.acc, DT_F32);
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &one->dev));
    one->dev->backend = &one->backend;
    assert_ok(one->backend.stream_new(one->dev, &one->queue));
    mesh_sketch(&degrees, rank, &one->ranks);
    for (int i = 0; i < MESH_GROUPS; i++)
        one->ranks.group[i].engine = &engine;
    assert_ok(dims_preset("debug", &dims));
    assert_ok(params_new(&dims, &one->registry));
    assert_ok(lora_add(one->registry, kind, "q_proj,v_proj,gate"));
    choose_kinds(one->registry, in_act);
    assert_ok(params_cut(one->registry, &dims, &degrees, one->ranks.place));
    params_share(one->registry, &one->ranks, true);
    assert_ok(params_alloc(one->registry, one->queue, true));
    for (int64_t i = 0; i < one->registry->count; i++) {
        const param *row = &one->registry->list[i];
        double *values = malloc((size_t)row->count * sizeof *values);
        assert_non_null(values);
        for (int64_t j = 0; j < row->count; j++)
            values[j] = value_of(i, j);
        if (row->adapter)
            assert_ok(params_write(row, one->queue, 0, row->count, values));
        free(values);
    }
}

static void close_part(part *one)
{
    params_release(one->registry, one->queue);
    params_free(&one->registry);
    one->backend.stream_free(&one->queue);
    one->dev->backend = &backend_cpu;
    device_close(&one->dev);
}

/* How many adapters were met whose rank has no master value, one in act, one in acc. */
enum { BARE, IN_ACT, IN_ACC, KINDS };

static void compare_row(const param *first, const param *second, int64_t number)
{
    assert_int_equal(first->own_n + second->own_n, first->count);
    for (int64_t j = 0; j < first->count; j++)
        if (first->whole[j] + second->whole[j] != value_of(number, j))
            fail_msg("%s: element %d is %g + %g and not %g", first->name, (int)j, first->whole[j],
                     second->whole[j], value_of(number, j));
}

static void test_gather__reads_what_ranks_store(void **state)
{
    (void)state;
    int64_t rows[KINDS] = {0}, shared = 0;
    for (int in_act = 0; in_act < 2; in_act++) {
        part parts[RANKS];
        for (int rank = 0; rank < RANKS; rank++) {
            open_part(&parts[rank], rank, in_act);
            assert_ok(lora_gather(parts[rank].registry, parts[rank].queue));
        }
        for (int64_t i = 0; i < parts[0].registry->count; i++) {
            const param *first = &parts[0].registry->list[i], *second = &parts[1].registry->list[i];
            if (!first->adapter)
                continue;
            compare_row(first, second, i);
            rows[!first->value ? BARE : first->value_dtype == DT_BF16 ? IN_ACT : IN_ACC]++;
            shared += first->own_n > 0 && second->own_n > 0;
        }
        for (int rank = 0; rank < RANKS; rank++)
            close_part(&parts[rank]);
    }
    for (int i = 0; i < KINDS; i++)
        assert_true(rows[i] > 0);
    assert_true(shared > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gather__reads_what_ranks_store)};
    return cmocka_run_group_tests_name("lora_gather", tests, NULL, NULL);
}
