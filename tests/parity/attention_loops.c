/* SPDX-License-Identifier: Apache-2.0 */
/* attention_loops.c: see attention_loops.h. */
#include "tests/parity/attention_loops.h"

#include <stdlib.h>

/* The borders of the keys.
 * The function below gives the key that belongs to query `token` itself. */
static const int32_t *key_borders(const attention *sizes)
{
    return sizes->cu_keys ? sizes->cu_keys : sizes->cu;
}

static int64_t self_of(const attention *sizes, int64_t token)
{
    return sizes->place ? sizes->place[token] : token;
}

bool attention_computes(const attention *sizes, int64_t token)
{
    return sizes->every == 0 || token % sizes->every == sizes->every - 1;
}

visible attention_sees(const attention *sizes, int64_t segment, int64_t token)
{
    const int32_t *borders = key_borders(sizes);
    visible seen = {.own = borders[segment]};
    if (sizes->prefix && sizes->prefix[segment] >= 0) {
        seen.prefix = borders[sizes->prefix[segment]];
        seen.n_prefix = borders[sizes->prefix[segment] + 1] - seen.prefix;
    }
    const int64_t end = sizes->causal ? self_of(sizes, token) + 1 : borders[segment + 1];
    seen.n = seen.n_prefix + end - seen.own;
    return seen;
}

static int64_t visible_key(const visible *seen, int64_t n)
{
    return n < seen->n_prefix ? seen->prefix + n : seen->own + n - seen->n_prefix;
}

/* Writes the scores of query (token, head) over the keys that it sees to row. Returns their
 * log-sum-exp.
 */
static double score_loop(const attention *sizes, int64_t token, int64_t head, const visible *seen)
{
    double max = -HUGE_VAL, sum = 0;
    const double *q = sizes->q + token * sizes->q_stride + head * sizes->d;
    for (int64_t j = 0; j < seen->n; j++) {
        const double *k = sizes->k + visible_key(seen, j) * sizes->k_stride +
                          head / (sizes->heads / sizes->kv_heads) * sizes->d;
        double x = 0;
        for (int64_t i = 0; i < sizes->d; i++)
            x += q[i] * k[i];
        sizes->row[j] = x * sizes->scale;
        max = sizes->row[j] > max ? sizes->row[j] : max;
    }
    for (int64_t j = 0; j < seen->n; j++)
        sum += exp(sizes->row[j] - max);
    return max + log(sum);
}

double attention_query(const attention *sizes, int64_t token, int64_t head, const visible *seen,
                       double *out, const attention_order *order)
{
    double lse = score_loop(sizes, token, head, seen), max = -HUGE_VAL;
    memset(out, 0, (size_t)sizes->d * sizeof *out);
    for (int64_t j = 0; j < seen->n && order; j++)
        max = sizes->row[j] > max ? sizes->row[j] : max;
    for (int64_t j = 0; j < seen->n; j++) {
        const double *v = sizes->v + visible_key(seen, j) * sizes->v_stride +
                          head / (sizes->heads / sizes->kv_heads) * sizes->d;
        double weight = exp(sizes->row[j] - lse);
        if (order)
            weight = parity_round(order->test, exp(sizes->row[j] - max)) * exp(max - lse);
        for (int64_t i = 0; i < sizes->d; i++)
            out[i] += weight * v[i];
    }
    for (int64_t i = 0; i < sizes->d && order; i++)
        out[i] = parity_round(order->test, out[i]);
    return lse;
}

/* The gradient of a score, times the scale. */
static double score_gradient(const attention *sizes, double p, double dp, double dot,
                             const attention_order *order)
{
    if (!order)
        return sizes->scale * p * (dp - dot);
    const double ds = p * ((order->dp ? parity_round(order->test, dp) : dp) - dot);
    return order->scaled ? parity_round(order->test, ds * sizes->scale)
                         : parity_round(order->test, ds) * sizes->scale;
}

/* Adds one query's part of the gradients. */
static void query_gradients(const attention *sizes, int64_t token, int64_t head,
                            const visible *seen, const gradients *to, const attention_order *order)
{
    double out[128], dot = 0;
    double lse = attention_query(sizes, token, head, seen, out, order);
    const double *up = sizes->up + token * sizes->o_stride + head * sizes->d;
    const int64_t at_q = token * sizes->q_stride + head * sizes->d,
                  kv = head / (sizes->heads / sizes->kv_heads) * sizes->d;
    for (int64_t i = 0; i < sizes->d; i++)
        dot += out[i] * up[i];
    for (int64_t j = 0; j < seen->n; j++) {
        const int64_t key = visible_key(seen, j);
        const int64_t at_k = key * sizes->k_stride + kv, at_v = key * sizes->v_stride + kv;
        double p = exp(sizes->row[j] - lse), dp = 0;
        for (int64_t i = 0; i < sizes->d; i++)
            dp += up[i] * sizes->v[at_v + i];
        const double ds = score_gradient(sizes, p, dp, dot, order);
        p = order ? parity_round(order->test, p) : p;
        for (int64_t i = 0; i < sizes->d; i++) {
            to->dv[at_v + i] += p * up[i];
            to->dq[at_q + i] += ds * sizes->k[at_k + i];
            to->dk[at_k + i] += ds * sizes->q[at_q + i];
        }
    }
}

/* Adds what the query heads `first`, `first` + step, .. give. */
static void heads_gradients(const attention *sizes, int64_t first, int64_t step,
                            const gradients *to, const attention_order *order)
{
    for (int64_t segment = 0; segment < sizes->segments; segment++)
        for (int64_t token = sizes->cu[segment]; token < sizes->cu[segment + 1]; token++) {
            const visible seen = attention_sees(sizes, segment, token);
            const int64_t heads = attention_computes(sizes, token) ? sizes->heads : 0;
            for (int64_t head = first; head < heads; head += step)
                query_gradients(sizes, token, head, &seen, to, order);
        }
}

/* Adds `from`, rounded, to `sum`, and clears it. */
static void add_rounded(double *sum, double *from, int64_t n, const attention_order *order)
{
    for (int64_t i = 0; i < n; i++) {
        sum[i] += parity_round(order->test, from[i]);
        from[i] = 0;
    }
}

void attention_gradients(const attention *sizes, const gradients *to, const attention_order *order)
{
    const int64_t shared = sizes->heads / sizes->kv_heads; /* query heads of one key-value head */
    if (shared == 1 || !order || !order->by_head) {
        heads_gradients(sizes, 0, 1, to, order);
        return;
    }
    const int64_t n_k = sizes->keys * sizes->k_stride, n_v = sizes->keys * sizes->v_stride;
    gradients one = {to->dq, calloc((size_t)n_k + 1, sizeof(double)),
                     calloc((size_t)n_v + 1, sizeof(double))};
    assert_true(one.dk && one.dv);
    for (int64_t i = 0; i < shared; i++) { /* one query head of every key-value head */
        heads_gradients(sizes, i, shared, &one, order);
        add_rounded(to->dk, one.dk, n_k, order);
        add_rounded(to->dv, one.dv, n_v, order);
    }
    free(one.dk);
    free(one.dv);
}
