/* SPDX-License-Identifier: Apache-2.0 */
/* route.c: the router, the sort of slots by expert, the mix of outputs, and the load-balancing
 * loss, on the CPU (route.h). */
#include <limits.h>
#include <string.h>

#include "trainer/ops/cpu/cpu_ops.h"

enum { EXPERTS_MAX = 1024, STAT_ROWS = 256 };

static int64_t valid_tokens(int64_t tokens, const int32_t *n_valid)
{
    if (!n_valid)
        return tokens;
    return *n_valid < 0 ? 0 : min_i64(tokens, *n_valid);
}

static status route_check(int64_t experts, int64_t top_k)
{
    if (experts <= 0 || experts > EXPERTS_MAX || top_k <= 0 || top_k > experts)
        return FAIL(ST_BAD_INPUT,
                    "route: top_k is %lld of %lld experts; 1 <= top_k <= experts <= %d must hold",
                    (long long)top_k, (long long)experts, EXPERTS_MAX);
    return ST_OK;
}

/* p = softmax(z) */
static void softmax_row(real *p, const real *z, int64_t n)
{
    real max = z[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        max = z[i] > max ? z[i] : max;
    for (int64_t i = 0; i < n; i++) {
        p[i] = real_exp(z[i] - max);
        sum += p[i];
    }
    for (int64_t i = 0; i < n; i++)
        p[i] /= sum;
}

/* Picks the k largest of z, largest first. The strict comparison gives ties to the lower index. NaN
 * is never larger than anything, so a broken row still picks k different experts. */
static void pick_row(int32_t *expert, real *weight, const real *z, const real *p, int64_t n,
                     int64_t k, bool normalise)
{
    bool taken[EXPERTS_MAX] = {false};
    real sum = 0;
    for (int64_t i = 0; i < k; i++) {
        int64_t best = -1;
        for (int64_t j = 0; j < n; j++)
            if (!taken[j] && (best < 0 || z[j] > z[best]))
                best = j;
        taken[best] = true;
        expert[i] = (int32_t)best;
        weight[i] = p[best];
        sum += p[best];
    }
    for (int64_t i = 0; normalise && i < k; i++)
        weight[i] /= sum;
}

static void route_fwd_rows(const void *context, part todo)
{
    const route_fwd_args *args = context;
    const int64_t experts = args->experts, k = args->top_k,
                  valid = valid_tokens(args->tokens, args->n_valid);
    const real *logits = args->logits;
    real *probs = args->probs, *weight = args->weight;
    for (int64_t j = todo.begin; j < todo.end; j++) {
        softmax_row(probs + j * experts, logits + j * experts, experts);
        if (j < valid)
            pick_row(args->expert + j * k, weight + j * k, logits + j * experts,
                     probs + j * experts, experts, k, args->norm_topk);
        for (int64_t i = 0; j >= valid && i < k; i++) {
            args->expert[j * k + i] = -1;
            weight[j * k + i] = 0;
        }
    }
}

status CPU_OP(route_fwd)(stream *queue, const route_fwd_args *args)
{
    const int64_t experts = args->experts, k = args->top_k;
    TRY(route_check(experts, k));
    cpu_run(queue, args->tokens, 4 * experts * (k + 2), route_fwd_rows, args);
    memset(args->count, 0, (size_t)experts * sizeof *args->count);
    for (int64_t i = 0; i < valid_tokens(args->tokens, args->n_valid) * k; i++)
        args->count[args->expert[i]] += args->samples ? args->samples[i / k] : 1;
    return ST_OK;
}

static void route_row_bwd(const route_bwd_args *args, int64_t token)
{
    const int64_t experts = args->experts, k = args->top_k;
    const int32_t *expert = args->expert + token * k;
    const real *w = (const real *)args->weight + token * k,
               *dw = (const real *)args->dweight + token * k;
    const real *p = (const real *)args->probs + token * experts;
    real *dz = (real *)args->dlogits + token * experts, dot = 0;
    memset(dz, 0, (size_t)experts * sizeof *dz);
    for (int64_t i = 0; i < k; i++)
        dot += w[i] * dw[i];
    if (args->norm_topk) {
        for (int64_t i = 0; i < k; i++)
            dz[expert[i]] = w[i] * (dw[i] - dot);
        return;
    }
    /* The weights are the probabilities themselves, so dot = sum_j p_j dp_j. */
    for (int64_t i = 0; i < k; i++)
        dz[expert[i]] = dw[i];
    for (int64_t j = 0; j < experts; j++)
        dz[j] = p[j] * (dz[j] - dot);
}

static void route_bwd_rows(const void *context, part todo)
{
    for (int64_t i = todo.begin; i < todo.end; i++)
        route_row_bwd(context, i);
}

status CPU_OP(route_bwd)(stream *queue, const route_bwd_args *args)
{
    TRY(route_check(args->experts, args->top_k));
    int64_t valid = valid_tokens(args->tokens, args->n_valid);
    cpu_run(queue, valid, 4 * args->experts, route_bwd_rows, args);
    memset((real *)args->dlogits + valid * args->experts, 0,
           (size_t)((args->tokens - valid) * args->experts) * sizeof(real));
    return ST_OK;
}

/* Adds the column sums of probs to prob_sum, in partial sums of STAT_ROWS rows. */
static void aux_add_stats(const route_aux_args *args, int64_t valid)
{
    const real *probs = args->probs;
    real *prob_sum = args->prob_sum, *count_total = args->count_total;
    for (int64_t t0 = 0; t0 < valid; t0 += STAT_ROWS) {
        real sum[EXPERTS_MAX] = {0};
        for (int64_t i = t0; i < min_i64(t0 + STAT_ROWS, valid); i++) {
            const real samples = args->samples ? (real)args->samples[i] : 1;
            for (int64_t expert = 0; expert < args->experts; expert++)
                sum[expert] += samples * probs[i * args->experts + expert];
        }
        for (int64_t expert = 0; expert < args->experts; expert++)
            prob_sum[expert] += sum[expert];
    }
    for (int64_t expert = 0; expert < args->experts; expert++)
        count_total[expert] += (real)args->count[expert];
}

/* N, the number of (layer, token) pairs in the statistics. */
static real aux_rows(const route_aux_args *args)
{
    if (args->all_valid)
        return (real)args->n_layers * *(const real *)args->all_valid;
    return (real)(args->n_layers * valid_tokens(args->tokens, args->n_valid));
}

static void aux_finish(const route_aux_args *args)
{
    const real *count = args->count_total, *prob_sum = args->prob_sum;
    real rows = aux_rows(args), sum = 0;
    for (int64_t expert = 0; expert < args->experts && rows > 0; expert++)
        sum += count[expert] / rows * (prob_sum[expert] / rows);
    *(real *)args->aux = (real)args->experts * sum;
}

static void aux_grad_rows(const void *context, part todo)
{
    const route_aux_args *args = context;
    const int64_t experts = args->experts;
    const real *count = args->count_total;
    const real rows = aux_rows(args);
    const real scale = *(const real *)args->scale * (real)experts / rows;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        const real *p = (const real *)args->probs + i * experts;
        const real samples = args->samples ? (real)args->samples[i] : 1;
        real *dz = (real *)args->dlogits + i * experts, dot = 0;
        for (int64_t j = 0; j < experts; j++)
            dot += count[j] / rows * p[j];
        for (int64_t j = 0; j < experts; j++)
            dz[j] += samples * scale * p[j] * (count[j] / rows - dot);
    }
}

status CPU_OP(route_aux)(stream *queue, const route_aux_args *args)
{
    TRY(route_check(args->experts, 1));
    int64_t valid = valid_tokens(args->tokens, args->n_valid);
    switch (args->phase) {
    case AUX_ADD_STATS:
        aux_add_stats(args, valid);
        return ST_OK;
    case AUX_FINISH:
        aux_finish(args);
        return ST_OK;
    case AUX_GRAD:
        cpu_run(queue, valid, 8 * args->experts, aux_grad_rows, args);
        return ST_OK;
    default:
        return FAIL(ST_BAD_INPUT, "route_aux: there is no phase %d", args->phase);
    }
}

/* A counting sort. It is serial, since it moves only a few numbers per token. */
status CPU_OP(permute)(stream *queue, const permute_args *args)
{
    (void)queue;
    const int64_t slots = args->tokens * args->top_k;
    if (slots > INT_MAX)
        return FAIL(ST_BAD_INPUT, "permute: there are %lld slots; at most 2^31 - 1 are possible",
                    (long long)slots);
    TRY(route_check(args->experts, args->top_k));
    int32_t next[EXPERTS_MAX];
    memset(args->offset, 0, (size_t)(args->experts + 1) * sizeof *args->offset);
    for (int64_t i = 0; i < slots; i++) {
        if (args->expert[i] >= args->experts)
            return FAIL(ST_BAD_INPUT, "permute: slot %lld wants expert %d of %lld", (long long)i,
                        args->expert[i], (long long)args->experts);
        if (args->expert[i] >= 0)
            args->offset[args->expert[i] + 1]++;
    }
    for (int64_t expert = 0; expert < args->experts; expert++) {
        args->offset[expert + 1] += args->offset[expert];
        next[expert] = args->offset[expert];
    }
    for (int64_t i = 0; i < slots; i++) {
        int32_t row = args->expert[i] < 0 ? -1 : next[args->expert[i]]++;
        args->slot_row[i] = row;
        if (row >= 0)
            args->row_token[row] = (int32_t)(i / args->top_k);
    }
    for (int64_t i = args->offset[args->experts]; i < slots; i++)
        args->row_token[i] = -1;
    return ST_OK;
}

static void combine_fwd_rows(const void *context, part todo)
{
    const combine_fwd_args *args = context;
    const int64_t width = args->width, k = args->top_k;
    const real *weight = args->weight, *o = args->o;
    for (int64_t token = todo.begin; token < todo.end; token++) {
        real *y = (real *)args->y + token * width;
        if (!args->residual)
            memset(y, 0, (size_t)width * sizeof *y);
        else if (args->residual != args->y)
            memcpy(y, (const real *)args->residual + token * width, (size_t)width * sizeof *y);
        for (int64_t i = token * k; i < (token + 1) * k; i++) {
            if (args->slot_row[i] < 0)
                continue;
            const real w = weight ? weight[i] : 1, *x = o + args->slot_row[i] * width;
#pragma omp simd
            for (int64_t j = 0; j < width; j++)
                y[j] += w * x[j];
        }
    }
}

status CPU_OP(combine_fwd)(stream *queue, const combine_fwd_args *args)
{
    cpu_run(queue, args->tokens, args->top_k * args->width, combine_fwd_rows, args);
    return ST_OK;
}

/* One slot: writes do_ = w dy and returns the dot product of dy and o. do_ may be o. */
static real combine_slot_bwd(real *do_, const real *o, const real *dy, real w, int64_t n)
{
    real dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < n; j++)
        dot += dy[j] * o[j];
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        do_[j] = w * dy[j];
    return dot;
}

static void combine_bwd_rows(const void *context, part todo)
{
    const combine_bwd_args *args = context;
    const int64_t width = args->width, k = args->top_k;
    const real *weight = args->weight, *o = args->o, *dy = args->dy;
    real *do_ = args->do_, *dweight = args->dweight;
    for (int64_t i = todo.begin * k; i < todo.end * k; i++) {
        int64_t row = args->slot_row[i];
        dweight[i] = 0;
        if (row >= 0)
            dweight[i] = combine_slot_bwd(do_ + row * width, o + row * width, dy + i / k * width,
                                          weight[i], width);
    }
}

status CPU_OP(combine_bwd)(stream *queue, const combine_bwd_args *args)
{
    cpu_run(queue, args->tokens, 2 * args->top_k * args->width, combine_bwd_rows, args);
    return ST_OK;
}
