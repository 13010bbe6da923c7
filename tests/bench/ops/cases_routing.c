/* SPDX-License-Identifier: Apache-2.0 */
/* cases_routing.c: cases of ops that route: the router, the sort by expert, the mixing of results.
 * Letters: T the tokens of the micro-batch; n the elements of a row; o what the experts give. */
#include "tests/bench/ops/op_cases.h"

#define TEXT (bench->sizes->dims->text)
#define T    (bench->sizes->tokens)

/* top_k different experts for each token. */
static int32_t choose_expert(const bench_sizes *sizes, int64_t index)
{
    int64_t k = sizes->dims->text.top_k, experts = sizes->dims->text.experts;
    return (int32_t)((index / k * 7919 + index % k * (experts / k)) % experts);
}

static int32_t own_slot(const bench_sizes *sizes, int64_t index)
{
    int64_t slots = sizes->tokens * sizes->dims->text.top_k;
    return (int32_t)(index * 7919 % slots);
}

static int32_t all_tokens(const bench_sizes *sizes, int64_t index)
{
    (void)index;
    return (int32_t)sizes->tokens;
}

static void bench_top_k(bench_case *bench)
{
    int64_t experts = TEXT.experts, k = TEXT.top_k;
    bench->args.route_fwd = (route_fwd_args){.tokens = T,
                                             .experts = experts,
                                             .top_k = k,
                                             .norm_topk = true,
                                             .n_valid = bench_ints(bench, 1, all_tokens),
                                             .logits = bench_act(bench, T * experts),
                                             .expert = bench_ints(bench, T * k, choose_expert),
                                             .weight = bench_acc(bench, T * k),
                                             .probs = bench_acc(bench, T * experts),
                                             .count = bench_ints(bench, experts, own_slot)};
    bench->bytes = count_act_bytes(bench, (double)(T * experts)) +
                   count_acc_bytes(bench, (double)(T * (experts + k))) + 4.0 * (double)(T * k);
}

static void route_bwd(bench_case *bench)
{
    int64_t experts = TEXT.experts, k = TEXT.top_k;
    bench->args.route_bwd = (route_bwd_args){.tokens = T,
                                             .experts = experts,
                                             .top_k = k,
                                             .norm_topk = true,
                                             .n_valid = bench_ints(bench, 1, all_tokens),
                                             .expert = bench_ints(bench, T * k, choose_expert),
                                             .weight = bench_acc(bench, T * k),
                                             .probs = bench_acc(bench, T * experts),
                                             .dweight = bench_acc(bench, T * k),
                                             .dlogits = bench_act(bench, T * experts)};
    bench->bytes = count_act_bytes(bench, (double)(T * experts)) +
                   count_acc_bytes(bench, 2.0 * (double)(T * k)) + 4.0 * (double)(T * k);
}

static void aux(bench_case *bench, int phase)
{
    int64_t experts = TEXT.experts;
    bench->args.route_aux = (route_aux_args){.phase = phase,
                                             .tokens = T,
                                             .experts = experts,
                                             .n_layers = 1,
                                             .n_valid = bench_ints(bench, 1, all_tokens),
                                             .count = bench_ints(bench, experts, own_slot),
                                             .probs = bench_acc(bench, T * experts),
                                             .count_total = bench_acc(bench, experts),
                                             .prob_sum = bench_acc(bench, experts),
                                             .aux = bench_acc(bench, 1),
                                             .scale = bench_acc(bench, 1),
                                             .dlogits = bench_act(bench, T * experts)};
    bench->bytes = count_acc_bytes(bench, (double)(T * experts)) +
                   (phase == AUX_GRAD ? count_act_bytes(bench, 2.0 * (double)(T * experts)) : 0.0);
}

static void aux_stats(bench_case *bench)
{
    aux(bench, AUX_ADD_STATS);
}

static void aux_grad(bench_case *bench)
{
    aux(bench, AUX_GRAD);
}

static void permute(bench_case *bench)
{
    int64_t experts = TEXT.experts, k = TEXT.top_k;
    bench->args.permute = (permute_args){.tokens = T,
                                         .experts = experts,
                                         .top_k = k,
                                         .expert = bench_ints(bench, T * k, choose_expert),
                                         .offset = bench_raw(bench, 4 * (experts + 1)),
                                         .slot_row = bench_raw(bench, 4 * T * k),
                                         .row_token = bench_raw(bench, 4 * T * k)};
    bench->bytes = 12.0 * (double)(T * k);
}

static void combine(bench_case *bench)
{
    int64_t k = TEXT.top_k, hidden = TEXT.hidden;
    bench->args.combine_fwd = (combine_fwd_args){.tokens = T,
                                                 .top_k = k,
                                                 .width = hidden,
                                                 .slot_row = bench_ints(bench, T * k, own_slot),
                                                 .weight = bench_acc(bench, T * k),
                                                 .o = bench_act(bench, T * k * hidden),
                                                 .residual = bench_act(bench, T * hidden),
                                                 .y = bench_act(bench, T * hidden)};
    bench->bytes = count_act_bytes(bench, (double)(T * (k + 2) * hidden)) +
                   count_acc_bytes(bench, (double)(T * k)) + 4.0 * (double)(T * k);
}

static void combine_bwd(bench_case *bench)
{
    int64_t k = TEXT.top_k, hidden = TEXT.hidden;
    void *o = bench_act(bench, T * k * hidden);
    bench->args.combine_bwd = (combine_bwd_args){.tokens = T,
                                                 .top_k = k,
                                                 .width = hidden,
                                                 .slot_row = bench_ints(bench, T * k, own_slot),
                                                 .weight = bench_acc(bench, T * k),
                                                 .o = o,
                                                 .dy = bench_act(bench, T * hidden),
                                                 .do_ = o,
                                                 .dweight = bench_acc(bench, T * k)};
    bench->bytes = count_act_bytes(bench, (double)(T * (2 * k + 1) * hidden)) +
                   count_acc_bytes(bench, 2.0 * (double)(T * k)) + 4.0 * (double)(T * k);
}

/* ---- exchange through memory windows of peers; here all windows are on this GPU, so that
 * everything is measured but NVLink itself ---- */

enum { PEERS = 8, MET = 256 };

static int32_t even_offset(const bench_sizes *sizes, int64_t index)
{
    const text_dims *text = &sizes->dims->text;
    return (int32_t)(sizes->tokens * text->top_k * (index % (text->experts + 1)) / text->experts);
}

static peer_set own_window(bench_case *bench, void *window)
{
    return (peer_set){.base = bench_upload(bench, &window, sizeof window), .rank = 0, .size = 1};
}

static void bench_offsets(bench_case *bench)
{
    const int64_t n = TEXT.experts + 1;
    bench->args.peers_tell = (peers_tell_args){.peers = own_window(bench, bench_raw(bench, 4 * n)),
                                               .count = n,
                                               .values = bench_ints(bench, n, even_offset)};
    bench->bytes = 8.0 * (double)n;
}

static void bench_meeting(bench_case *bench)
{
    bench->args.peers_meet =
        (peers_meet_args){.peers = own_window(bench, bench_raw(bench, 2 * MET)),
                          .met = MET,
                          .phase = MEET_ARRIVE | MEET_WAIT};
    bench->bytes = 16.0;
}

static void plan(bench_case *bench)
{
    const int64_t n = PEERS * (TEXT.experts + 1);
    bench->args.exchange_plan =
        (exchange_plan_args){.ranks = PEERS,
                             .experts = TEXT.experts,
                             .rows = T * TEXT.top_k,
                             .borders = bench_ints(bench, n, even_offset),
                             .place = bench_raw(bench, 4 * TEXT.experts),
                             .order = bench_raw(bench, 4 * (TEXT.experts + 1)),
                             .rounds = bench_raw(bench, 4),
                             .moved = bench_raw(bench, 16)};
    bench->bytes = 4.0 * (double)(n + TEXT.experts);
}

static void fill_exchange(bench_case *bench, bool back)
{
    const int64_t slots = T * TEXT.top_k, hidden = TEXT.hidden;
    const int32_t *offset = bench_ints(bench, TEXT.experts + 1, even_offset);
    bench->args.exchange_rows =
        (exchange_rows_args){.peers = own_window(bench, bench_act(bench, slots * hidden)),
                             .back = back,
                             .slots = slots,
                             .width = hidden,
                             .experts = TEXT.experts,
                             .rows = slots,
                             .offset = offset,
                             .place = offset,
                             .order = offset,
                             .rounds = bench_raw(bench, 4),
                             .mine = bench_act(bench, slots * hidden)};
    bench->bytes = count_act_bytes(bench, 2.0 * (double)(slots * hidden));
}

static void there(bench_case *bench)
{
    fill_exchange(bench, false);
}

static void back(bench_case *bench)
{
    fill_exchange(bench, true);
}

const bench_row bench_routing[] = {
    BENCH_ROW(route_fwd, "top K", bench_top_k),
    BENCH_ROW(route_bwd, "top K", route_bwd),
    BENCH_ROW(route_aux, "statistics", aux_stats),
    BENCH_ROW(route_aux, "gradient", aux_grad),
    BENCH_ROW(permute, "slots", permute),
    BENCH_ROW(combine_fwd, "mix, residual", combine),
    BENCH_ROW(combine_bwd, "mix", combine_bwd),
    BENCH_ROW(peers_tell, "offsets", bench_offsets),
    BENCH_ROW(peers_meet, "alone", bench_meeting),
    BENCH_ROW(exchange_plan, "8 ranks", plan),
    BENCH_ROW(exchange_rows, "there", there),
    BENCH_ROW(exchange_rows, "back", back),
    {.op_name = NULL},
};
