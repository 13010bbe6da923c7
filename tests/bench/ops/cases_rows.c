/* SPDX-License-Identifier: Apache-2.0 */
/* cases_rows.c: cases of ops that move rows by an index, between tokens, expert slots, pictures and
 * tables, and of the loss over the vocabulary. All are limited by memory bandwidth. Letters: T, S
 * the tokens and the patches of the micro-batch; n the rows that move. */
#include <stdlib.h>

#include "tests/bench/ops/op_cases.h"

enum { LOGIT_ROWS = 1024 };
#define TEXT (bench->sizes->dims->text)
#define EYE  (bench->sizes->dims->vision)
#define T    (bench->sizes->tokens)
#define S    (bench->sizes->patches)

static int32_t some_token(const bench_sizes *sizes, int64_t index)
{
    return (int32_t)(index * 7919 % sizes->dims->text.vocab);
}

static int32_t slot_token(const bench_sizes *sizes, int64_t index)
{
    return (int32_t)(index * 7919 % sizes->tokens);
}

static int32_t own_row(const bench_sizes *sizes, int64_t index)
{
    (void)sizes;
    return (int32_t)index;
}

/* Where each token's slots are if slot i is that of slot_token(i): places [T, K]. */
static int32_t *slot_places(bench_case *bench)
{
    const int64_t k = TEXT.top_k, n = T * k;
    int32_t *places = malloc((size_t)n * sizeof *places), *made = NULL;
    int64_t *used = calloc((size_t)T, sizeof *used);
    if (places && used) {
        for (int64_t i = 0; i < n; i++)
            places[i] = -1;
        for (int64_t i = 0; i < n; i++) {
            const int64_t token = slot_token(bench->sizes, i);
            if (used[token] < k)
                places[token * k + used[token]++] = (int32_t)i;
        }
        made = bench_ints_of(bench, places, n);
    } else if (bench->st == ST_OK) {
        bench->st = FAIL(ST_NO_MEMORY, "no memory for the arguments of an op");
    }
    free(places);
    free(used);
    return made;
}

static void gather_slots(bench_case *bench)
{
    int64_t n = T * TEXT.top_k, width = TEXT.hidden;
    bench->args.rows_gather = (rows_gather_args){.n = n,
                                                 .width = width,
                                                 .index = bench_ints(bench, n, slot_token),
                                                 .x = bench_act(bench, T * width),
                                                 .y = bench_act(bench, n * width),
                                                 .copies = TEXT.top_k,
                                                 .places = slot_places(bench)};
    bench->bytes = count_act_bytes(bench, (double)((n + T) * width)) + 8.0 * (double)n;
}

static void scatter_embedding(bench_case *bench)
{
    int64_t width = TEXT.hidden;
    bench->args.rows_scatter = (rows_scatter_args){.n = T,
                                                   .width = width,
                                                   .y_rows = TEXT.vocab,
                                                   .index = bench_ints(bench, T, some_token),
                                                   .x = bench_act(bench, T * width),
                                                   .y = bench_acc(bench, TEXT.vocab * width),
                                                   .y_acc = true};
    bench->bytes = count_act_bytes(bench, (double)(T * width)) +
                   count_acc_bytes(bench, 2.0 * (double)(T * width));
}

static void scatter_visual(bench_case *bench)
{
    int64_t n = S / 4 < T ? S / 4 : T, width = TEXT.hidden;
    bench->args.rows_scatter = (rows_scatter_args){.n = n,
                                                   .width = width,
                                                   .y_rows = T,
                                                   .index = bench_ints(bench, n, own_row),
                                                   .x = bench_act(bench, n * width),
                                                   .y = bench_act(bench, T * width),
                                                   .distinct = true};
    bench->bytes = count_act_bytes(bench, 3.0 * (double)(n * width));
}

static int32_t table_row(const bench_sizes *sizes, int64_t index)
{
    return (int32_t)(index / 4 * 13 % sizes->dims->vision.positions);
}

static void weighted(bench_case *bench)
{
    int64_t width = EYE.hidden;
    bench->args.rows_weighted =
        (rows_weighted_args){.n = S,
                             .width = width,
                             .table_rows = EYE.positions,
                             .index = bench_ints(bench, 4 * S, table_row),
                             .weight = bench_acc(bench, 4 * S),
                             .table = bench_act(bench, EYE.positions * width),
                             .y = bench_act(bench, S * width)};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)(S * width)) +
                   count_acc_bytes(bench, 4.0 * (double)S) + 16.0 * (double)S;
}

static void weighted_bwd(bench_case *bench)
{
    int64_t width = EYE.hidden;
    bench->args.rows_weighted_bwd =
        (rows_weighted_bwd_args){.n = S,
                                 .width = width,
                                 .table_rows = EYE.positions,
                                 .index = bench_ints(bench, 4 * S, table_row),
                                 .weight = bench_acc(bench, 4 * S),
                                 .dy = bench_act(bench, S * width),
                                 .dtable = bench_acc(bench, EYE.positions * width)};
    bench->bytes = count_act_bytes(bench, (double)(S * width)) +
                   count_acc_bytes(bench, 4.0 * (double)S) + 16.0 * (double)S +
                   count_acc_bytes(bench, 2.0 * (double)(EYE.positions * width));
}

static void xent(bench_case *bench)
{
    int64_t n = LOGIT_ROWS, vocab = TEXT.vocab;
    bench->args.xent = (xent_args){.n = n,
                                   .vocab = vocab,
                                   .label = bench_ints(bench, n, some_token),
                                   .weight = bench_acc(bench, n),
                                   .logits = bench_act(bench, n * vocab),
                                   .backward = true,
                                   .loss_sum = bench_raw(bench, 8),
                                   .weight_sum = bench_raw(bench, 8)};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)(n * vocab));
}

const bench_row bench_rows[] = {
    BENCH_ROW(rows_gather, "slots", gather_slots),
    BENCH_ROW(rows_scatter, "embedding", scatter_embedding),
    BENCH_ROW(rows_scatter, "visual rows", scatter_visual),
    BENCH_ROW(rows_weighted, "position table", weighted),
    BENCH_ROW(rows_weighted_bwd, "position table", weighted_bwd),
    BENCH_ROW(xent, "chunk", xent),
    {.op_name = NULL},
};
