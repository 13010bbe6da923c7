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
    for (int64_t e = 1; e < n; e++)
        max = z[e] > max ? z[e] : max;
    for (int64_t e = 0; e < n; e++) {
        p[e] = real_exp(z[e] - max);
        sum += p[e];
    }
    for (int64_t e = 0; e < n; e++)
        p[e] /= sum;
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
        for (int64_t e = 0; e < n; e++)
            if (!taken[e] && (best < 0 || z[e] > z[best]))
                best = e;
        taken[best] = true;
        expert[i] = (int32_t)best;
        weight[i] = p[best];
        sum += p[best];
    }
    for (int64_t i = 0; normalise && i < k; i++)
        weight[i] /= sum;
}

static void route_fwd_rows(const void *context, part p)
{
    const route_fwd_args *a = context;
    const int64_t n = a->experts, k = a->top_k, valid = valid_tokens(a->tokens, a->n_valid);
    const real *logits = a->logits;
    real *probs = a->probs, *weight = a->weight;
    for (int64_t t = p.begin; t < p.end; t++) {
        softmax_row(probs + t * n, logits + t * n, n);
        if (t < valid)
            pick_row(a->expert + t * k, weight + t * k, logits + t * n, probs + t * n, n, k,
                     a->norm_topk);
        for (int64_t i = 0; t >= valid && i < k; i++) {
            a->expert[t * k + i] = -1;
            weight[t * k + i] = 0;
        }
    }
}

status CPU_OP(route_fwd)(stream *s, const route_fwd_args *a)
{
    const int64_t n = a->experts, k = a->top_k;
    TRY(route_check(n, k));
    cpu_run(s, a->tokens, 4 * n * (k + 2), route_fwd_rows, a);
    memset(a->count, 0, (size_t)n * sizeof *a->count);
    for (int64_t i = 0; i < valid_tokens(a->tokens, a->n_valid) * k; i++)
        a->count[a->expert[i]] += a->samples ? a->samples[i / k] : 1;
    return ST_OK;
}

static void route_row_bwd(const route_bwd_args *a, int64_t t)
{
    const int64_t n = a->experts, k = a->top_k;
    const int32_t *expert = a->expert + t * k;
    const real *w = (const real *)a->weight + t * k, *dw = (const real *)a->dweight + t * k;
    const real *p = (const real *)a->probs + t * n;
    real *dz = (real *)a->dlogits + t * n, dot = 0;
    memset(dz, 0, (size_t)n * sizeof *dz);
    for (int64_t i = 0; i < k; i++)
        dot += w[i] * dw[i];
    if (a->norm_topk) {
        for (int64_t i = 0; i < k; i++)
            dz[expert[i]] = w[i] * (dw[i] - dot);
        return;
    }
    /* The weights are the probabilities themselves, so dot = sum_j p_j dp_j. */
    for (int64_t i = 0; i < k; i++)
        dz[expert[i]] = dw[i];
    for (int64_t e = 0; e < n; e++)
        dz[e] = p[e] * (dz[e] - dot);
}

static void route_bwd_rows(const void *context, part p)
{
    for (int64_t t = p.begin; t < p.end; t++)
        route_row_bwd(context, t);
}

status CPU_OP(route_bwd)(stream *s, const route_bwd_args *a)
{
    TRY(route_check(a->experts, a->top_k));
    int64_t valid = valid_tokens(a->tokens, a->n_valid);
    cpu_run(s, valid, 4 * a->experts, route_bwd_rows, a);
    memset((real *)a->dlogits + valid * a->experts, 0,
           (size_t)((a->tokens - valid) * a->experts) * sizeof(real));
    return ST_OK;
}

/* Adds the column sums of probs to prob_sum, in partial sums of STAT_ROWS rows. */
static void aux_add_stats(const route_aux_args *a, int64_t valid)
{
    const real *probs = a->probs;
    real *prob_sum = a->prob_sum, *count_total = a->count_total;
    for (int64_t t0 = 0; t0 < valid; t0 += STAT_ROWS) {
        real sum[EXPERTS_MAX] = {0};
        for (int64_t t = t0; t < min_i64(t0 + STAT_ROWS, valid); t++) {
            const real samples = a->samples ? (real)a->samples[t] : 1;
            for (int64_t e = 0; e < a->experts; e++)
                sum[e] += samples * probs[t * a->experts + e];
        }
        for (int64_t e = 0; e < a->experts; e++)
            prob_sum[e] += sum[e];
    }
    for (int64_t e = 0; e < a->experts; e++)
        count_total[e] += (real)a->count[e];
}

/* N, the number of (layer, token) pairs in the statistics. */
static real aux_rows(const route_aux_args *a)
{
    if (a->all_valid)
        return (real)a->n_layers * *(const real *)a->all_valid;
    return (real)(a->n_layers * valid_tokens(a->tokens, a->n_valid));
}

static void aux_finish(const route_aux_args *a)
{
    const real *count = a->count_total, *prob_sum = a->prob_sum;
    real rows = aux_rows(a), sum = 0;
    for (int64_t e = 0; e < a->experts && rows > 0; e++)
        sum += count[e] / rows * (prob_sum[e] / rows);
    *(real *)a->aux = (real)a->experts * sum;
}

static void aux_grad_rows(const void *context, part todo)
{
    const route_aux_args *a = context;
    const int64_t n = a->experts;
    const real *count = a->count_total;
    const real rows = aux_rows(a);
    const real scale = *(const real *)a->scale * (real)n / rows;
    for (int64_t t = todo.begin; t < todo.end; t++) {
        const real *p = (const real *)a->probs + t * n;
        const real samples = a->samples ? (real)a->samples[t] : 1;
        real *dz = (real *)a->dlogits + t * n, dot = 0;
        for (int64_t e = 0; e < n; e++)
            dot += count[e] / rows * p[e];
        for (int64_t e = 0; e < n; e++)
            dz[e] += samples * scale * p[e] * (count[e] / rows - dot);
    }
}

status CPU_OP(route_aux)(stream *s, const route_aux_args *a)
{
    TRY(route_check(a->experts, 1));
    int64_t valid = valid_tokens(a->tokens, a->n_valid);
    switch (a->phase) {
    case AUX_ADD_STATS:
        aux_add_stats(a, valid);
        return ST_OK;
    case AUX_FINISH:
        aux_finish(a);
        return ST_OK;
    case AUX_GRAD:
        cpu_run(s, valid, 8 * a->experts, aux_grad_rows, a);
        return ST_OK;
    default:
        return FAIL(ST_BAD_INPUT, "route_aux: there is no phase %d", a->phase);
    }
}

/* A counting sort. It is serial, since it moves only a few numbers per token. */
status CPU_OP(permute)(stream *s, const permute_args *a)
{
    (void)s;
    const int64_t slots = a->tokens * a->top_k;
    if (slots > INT_MAX)
        return FAIL(ST_BAD_INPUT, "permute: there are %lld slots; at most 2^31 - 1 are possible",
                    (long long)slots);
    TRY(route_check(a->experts, a->top_k));
    int32_t next[EXPERTS_MAX];
    memset(a->offset, 0, (size_t)(a->experts + 1) * sizeof *a->offset);
    for (int64_t i = 0; i < slots; i++) {
        if (a->expert[i] >= a->experts)
            return FAIL(ST_BAD_INPUT, "permute: slot %lld wants expert %d of %lld", (long long)i,
                        a->expert[i], (long long)a->experts);
        if (a->expert[i] >= 0)
            a->offset[a->expert[i] + 1]++;
    }
    for (int64_t e = 0; e < a->experts; e++) {
        a->offset[e + 1] += a->offset[e];
        next[e] = a->offset[e];
    }
    for (int64_t i = 0; i < slots; i++) {
        int32_t row = a->expert[i] < 0 ? -1 : next[a->expert[i]]++;
        a->slot_row[i] = row;
        if (row >= 0)
            a->row_token[row] = (int32_t)(i / a->top_k);
    }
    for (int64_t i = a->offset[a->experts]; i < slots; i++)
        a->row_token[i] = -1;
    return ST_OK;
}

static void combine_fwd_rows(const void *context, part p)
{
    const combine_fwd_args *a = context;
    const int64_t n = a->width, k = a->top_k;
    const real *weight = a->weight, *o = a->o;
    for (int64_t t = p.begin; t < p.end; t++) {
        real *y = (real *)a->y + t * n;
        if (!a->residual)
            memset(y, 0, (size_t)n * sizeof *y);
        else if (a->residual != a->y)
            memcpy(y, (const real *)a->residual + t * n, (size_t)n * sizeof *y);
        for (int64_t i = t * k; i < (t + 1) * k; i++) {
            if (a->slot_row[i] < 0)
                continue;
            const real w = weight ? weight[i] : 1, *x = o + a->slot_row[i] * n;
#pragma omp simd
            for (int64_t j = 0; j < n; j++)
                y[j] += w * x[j];
        }
    }
}

status CPU_OP(combine_fwd)(stream *s, const combine_fwd_args *a)
{
    cpu_run(s, a->tokens, a->top_k * a->width, combine_fwd_rows, a);
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

static void combine_bwd_rows(const void *context, part p)
{
    const combine_bwd_args *a = context;
    const int64_t n = a->width, k = a->top_k;
    const real *weight = a->weight, *o = a->o, *dy = a->dy;
    real *do_ = a->do_, *dweight = a->dweight;
    for (int64_t i = p.begin * k; i < p.end * k; i++) {
        int64_t row = a->slot_row[i];
        dweight[i] = 0;
        if (row >= 0)
            dweight[i] = combine_slot_bwd(do_ + row * n, o + row * n, dy + i / k * n, weight[i], n);
    }
}

status CPU_OP(combine_bwd)(stream *s, const combine_bwd_args *a)
{
    cpu_run(s, a->tokens, 2 * a->top_k * a->width, combine_bwd_rows, a);
    return ST_OK;
}
