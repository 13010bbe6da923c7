/* cases_routing.c: cases of ops that route: the router, the sort by expert, the mixing of results.
 */
#include "trainer/bench/cases.h"

#define TEXT (c->sizes->dims->text)
#define T    (c->sizes->tokens)

static double count_act_bytes(const bench_case *c, double n)
{
    return bench_act_bytes(c) * n;
}

static double count_acc_bytes(const bench_case *c, double n)
{
    return bench_acc_bytes(c) * n;
}

/* top_k different experts for each token. */
static int32_t choose_expert(const bench_sizes *z, int64_t i)
{
    int64_t k = z->dims->text.top_k, experts = z->dims->text.experts;
    return (int32_t)((i / k * 7919 + i % k * (experts / k)) % experts);
}

static int32_t own_slot(const bench_sizes *z, int64_t i)
{
    int64_t slots = z->tokens * z->dims->text.top_k;
    return (int32_t)(i * 7919 % slots);
}

static int32_t all_tokens(const bench_sizes *z, int64_t i)
{
    (void)i;
    return (int32_t)z->tokens;
}

static void bench_top_k(bench_case *c)
{
    int64_t e = TEXT.experts, k = TEXT.top_k;
    c->args.route_fwd = (route_fwd_args){.tokens = T,
                                         .experts = e,
                                         .top_k = k,
                                         .norm_topk = true,
                                         .n_valid = bench_ints(c, 1, all_tokens),
                                         .logits = bench_act(c, T * e),
                                         .expert = bench_ints(c, T * k, choose_expert),
                                         .weight = bench_acc(c, T * k),
                                         .probs = bench_acc(c, T * e),
                                         .count = bench_ints(c, e, own_slot)};
    c->bytes = count_act_bytes(c, (double)(T * e)) + count_acc_bytes(c, (double)(T * (e + k))) +
               4.0 * (double)(T * k);
}

static void route_bwd(bench_case *c)
{
    int64_t e = TEXT.experts, k = TEXT.top_k;
    c->args.route_bwd = (route_bwd_args){.tokens = T,
                                         .experts = e,
                                         .top_k = k,
                                         .norm_topk = true,
                                         .n_valid = bench_ints(c, 1, all_tokens),
                                         .expert = bench_ints(c, T * k, choose_expert),
                                         .weight = bench_acc(c, T * k),
                                         .probs = bench_acc(c, T * e),
                                         .dweight = bench_acc(c, T * k),
                                         .dlogits = bench_act(c, T * e)};
    c->bytes = count_act_bytes(c, (double)(T * e)) + count_acc_bytes(c, 2.0 * (double)(T * k)) +
               4.0 * (double)(T * k);
}

static void aux(bench_case *c, int phase)
{
    int64_t e = TEXT.experts;
    c->args.route_aux = (route_aux_args){.phase = phase,
                                         .tokens = T,
                                         .experts = e,
                                         .n_layers = 1,
                                         .n_valid = bench_ints(c, 1, all_tokens),
                                         .count = bench_ints(c, e, own_slot),
                                         .probs = bench_acc(c, T * e),
                                         .count_total = bench_acc(c, e),
                                         .prob_sum = bench_acc(c, e),
                                         .aux = bench_acc(c, 1),
                                         .scale = bench_acc(c, 1),
                                         .dlogits = bench_act(c, T * e)};
    c->bytes = count_acc_bytes(c, (double)(T * e)) +
               (phase == AUX_GRAD ? count_act_bytes(c, 2.0 * (double)(T * e)) : 0.0);
}

static void aux_stats(bench_case *c)
{
    aux(c, AUX_ADD_STATS);
}

static void aux_grad(bench_case *c)
{
    aux(c, AUX_GRAD);
}

static void permute(bench_case *c)
{
    int64_t e = TEXT.experts, k = TEXT.top_k;
    c->args.permute = (permute_args){.tokens = T,
                                     .experts = e,
                                     .top_k = k,
                                     .expert = bench_ints(c, T * k, choose_expert),
                                     .offset = bench_raw(c, 4 * (e + 1)),
                                     .slot_row = bench_raw(c, 4 * T * k),
                                     .row_token = bench_raw(c, 4 * T * k)};
    c->bytes = 12.0 * (double)(T * k);
}

static void combine(bench_case *c)
{
    int64_t k = TEXT.top_k, h = TEXT.hidden;
    c->args.combine_fwd = (combine_fwd_args){.tokens = T,
                                             .top_k = k,
                                             .width = h,
                                             .slot_row = bench_ints(c, T * k, own_slot),
                                             .weight = bench_acc(c, T * k),
                                             .o = bench_act(c, T * k * h),
                                             .residual = bench_act(c, T * h),
                                             .y = bench_act(c, T * h)};
    c->bytes = count_act_bytes(c, (double)(T * (k + 2) * h)) + count_acc_bytes(c, (double)(T * k)) +
               4.0 * (double)(T * k);
}

static void combine_bwd(bench_case *c)
{
    int64_t k = TEXT.top_k, h = TEXT.hidden;
    void *o = bench_act(c, T * k * h);
    c->args.combine_bwd = (combine_bwd_args){.tokens = T,
                                             .top_k = k,
                                             .width = h,
                                             .slot_row = bench_ints(c, T * k, own_slot),
                                             .weight = bench_acc(c, T * k),
                                             .o = o,
                                             .dy = bench_act(c, T * h),
                                             .do_ = o,
                                             .dweight = bench_acc(c, T * k)};
    c->bytes = count_act_bytes(c, (double)(T * (2 * k + 1) * h)) +
               count_acc_bytes(c, 2.0 * (double)(T * k)) + 4.0 * (double)(T * k);
}

/* ---- exchange through memory windows of peers; here all windows are on this GPU, so that
 * everything is measured but NVLink itself ---- */

enum { PEERS = 8, MET = 256 };

static int32_t even_offset(const bench_sizes *z, int64_t i)
{
    const text_dims *d = &z->dims->text;
    return (int32_t)(z->tokens * d->top_k * (i % (d->experts + 1)) / d->experts);
}

static peer_set own_window(bench_case *c, void *window)
{
    return (peer_set){.base = bench_upload(c, &window, sizeof window), .rank = 0, .size = 1};
}

static void bench_offsets(bench_case *c)
{
    const int64_t n = TEXT.experts + 1;
    c->args.peers_tell = (peers_tell_args){.peers = own_window(c, bench_raw(c, 4 * n)),
                                           .count = n,
                                           .values = bench_ints(c, n, even_offset)};
    c->bytes = 8.0 * (double)n;
}

static void bench_meeting(bench_case *c)
{
    c->args.peers_meet = (peers_meet_args){.peers = own_window(c, bench_raw(c, 2 * MET)),
                                           .met = MET,
                                           .phase = MEET_ARRIVE | MEET_WAIT};
    c->bytes = 16.0;
}

static void plan(bench_case *c)
{
    const int64_t n = PEERS * (TEXT.experts + 1);
    c->args.exchange_plan = (exchange_plan_args){.ranks = PEERS,
                                                 .experts = TEXT.experts,
                                                 .rows = T * TEXT.top_k,
                                                 .borders = bench_ints(c, n, even_offset),
                                                 .place = bench_raw(c, 4 * TEXT.experts),
                                                 .order = bench_raw(c, 4 * (TEXT.experts + 1)),
                                                 .rounds = bench_raw(c, 4),
                                                 .moved = bench_raw(c, 16)};
    c->bytes = 4.0 * (double)(n + TEXT.experts);
}

static void fill_exchange(bench_case *c, bool back)
{
    const int64_t slots = T * TEXT.top_k, h = TEXT.hidden;
    const int32_t *offset = bench_ints(c, TEXT.experts + 1, even_offset);
    c->args.exchange_rows = (exchange_rows_args){.peers = own_window(c, bench_act(c, slots * h)),
                                                 .back = back,
                                                 .slots = slots,
                                                 .width = h,
                                                 .experts = TEXT.experts,
                                                 .rows = slots,
                                                 .offset = offset,
                                                 .place = offset,
                                                 .order = offset,
                                                 .rounds = bench_raw(c, 4),
                                                 .mine = bench_act(c, slots * h)};
    c->bytes = count_act_bytes(c, 2.0 * (double)(slots * h));
}

static void there(bench_case *c)
{
    fill_exchange(c, false);
}

static void back(bench_case *c)
{
    fill_exchange(c, true);
}

#define ROW(op, shape, make)                                                                       \
    {                                                                                              \
        BENCH_##op, #op, shape, make                                                               \
    }
const bench_row bench_routing[] = {
    ROW(route_fwd, "top K", bench_top_k),
    ROW(route_bwd, "top K", route_bwd),
    ROW(route_aux, "statistics", aux_stats),
    ROW(route_aux, "gradient", aux_grad),
    ROW(permute, "slots", permute),
    ROW(combine_fwd, "mix, residual", combine),
    ROW(combine_bwd, "mix", combine_bwd),
    ROW(peers_tell, "offsets", bench_offsets),
    ROW(peers_meet, "alone", bench_meeting),
    ROW(exchange_plan, "8 ranks", plan),
    ROW(exchange_rows, "there", there),
    ROW(exchange_rows, "back", back),
    {.op_name = NULL},
};
