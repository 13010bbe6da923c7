/* SPDX-License-Identifier: Apache-2.0 */
/* cases_products.c: further cases of grouped products and attention, whose rates trainer plan does
 * not read: other loads of the experts, the grid that runs beside collectives, and the attention of
 * generation. Letters: T the tokens of
 * the micro-batch; n the documents. */
#include "tests/bench/ops/op_cases.h"

#define T (bench->sizes->tokens)

static void even(bench_case *bench)
{
    bench_grouped(bench, GROUPED_FWD, true, 1);
}

static void load_8(bench_case *bench)
{
    bench_grouped(bench, GROUPED_FWD, true, 8);
}

static void load_8_dw(bench_case *bench)
{
    bench_grouped(bench, GROUPED_WGRAD, true, 8);
}

/* The grid that runs beside collectives (cuda_facts.turns), alone on the GPU: what the turns cost.
 */
static void gated_turns(bench_case *bench)
{
    bench_grouped_gated(bench);
    bench->args.grouped_gemm.beside = true;
}

static void dw_turns(bench_case *bench)
{
    bench_grouped(bench, GROUPED_WGRAD, true, 3);
    bench->args.grouped_gemm.beside = true;
}

static int32_t first_row(const bench_sizes *sizes, int64_t index)
{
    return (int32_t)(index * sizes->document);
}

static int32_t all_rows(const bench_sizes *sizes, int64_t index)
{
    (void)index;
    return (int32_t)sizes->document;
}

/* Attention of the next token of several documents that are generated at once. */
static void attention_cached(bench_case *bench)
{
    const text_dims *dims = &bench->sizes->dims->text;
    int64_t head_dim = dims->head_dim,
            n = T / bench->sizes->document < 1 ? 1 : T / bench->sizes->document;
    int64_t rows = n * bench->sizes->document;
    bench->args.attention_cached =
        (attention_cached_args){.queries = n,
                                .heads = dims->heads,
                                .kv_heads = dims->kv_heads,
                                .head_dim = head_dim,
                                .rows = rows,
                                .scale = 0.1,
                                .first = bench_ints(bench, n, first_row),
                                .length = bench_ints(bench, n, all_rows),
                                .q = bench_act(bench, n * dims->heads * head_dim),
                                .k = bench_act(bench, rows * dims->kv_heads * head_dim),
                                .v = bench_act(bench, rows * dims->kv_heads * head_dim),
                                .o = bench_act(bench, n * dims->heads * head_dim)};
    bench->flops = 4.0 * (double)(rows * dims->heads * head_dim);
    bench->bytes = 2.0 * bench_act_bytes(bench) *
                   (double)((rows * dims->kv_heads + n * dims->heads) * head_dim);
}

const bench_row bench_more_products[] = {
    BENCH_ROW(grouped_gemm, "gate up, load 1", even),
    BENCH_ROW(grouped_gemm, "gate up, load 8", load_8),
    BENCH_ROW(grouped_gemm, "gate up dw, load 8", load_8_dw),
    BENCH_ROW(grouped_gemm, "gated, in turns", gated_turns),
    BENCH_ROW(grouped_gemm, "gate up dw, in turns", dw_turns),
    BENCH_ROW(attention_cached, "text, documents", attention_cached),
    {.op_name = NULL},
};
