/* attention_head.h: one (segment, query head) of attention, as attention.c hands it to the two ways
 * of doing it: products through OpenBLAS for long segments, and our own for short ones. */
#ifndef TESSERA_TRAINER_OPS_CPU_ATTENTION_HEAD_H
#define TESSERA_TRAINER_OPS_CPU_ATTENTION_HEAD_H

#include "trainer/ops/cpu/cpu_ops.h"

/* Seen from the segment's first token. Strides in elements. */
typedef struct head_view {
    const real *q, *k, *v;
    int64_t q_stride, k_stride, v_stride, o_stride, lse_stride;
    int64_t n, d; /* queries of the segment, head_dim */
    int64_t keys; /* of the segment */
    const int32_t
        *place; /* [n] key that a query itself is, counted from `first_key`; NULL: its own */
    int64_t first_key;
    bool causal;
    real scale;
} head_view;

/* What the backward reads and writes beyond the view. */
typedef struct head_grads {
    const real *o, *lse, *do_;
    real *dq, *dk, *dv; /* dq written; dk, dv added to */
    real *dot;          /* row sums of do * o, stride lse_stride, written */
} head_grads;

/* Keys that query i may see. */
static inline int64_t head_keys(const head_view *w, int64_t i)
{
    if (!w->causal)
        return w->keys;
    return w->place ? w->place[i] - w->first_key + 1 : i + 1;
}

#define HEAD_SOFTMAX_ROW CPU_PASTE(head_softmax_row, CPU_VARIANT)
#define HEAD_DOTS        CPU_PASTE(head_dots, CPU_VARIANT)
#define HEAD_PROBABILITY CPU_PASTE(head_probability, CPU_VARIANT)
#define SHORT_HEAD_FWD   CPU_PASTE(short_head_fwd, CPU_VARIANT)
#define SHORT_HEAD_BWD   CPU_PASTE(short_head_bwd, CPU_VARIANT)

/* Replaces a row of scores by probabilities; returns their log-sum-exp. */
real HEAD_SOFTMAX_ROW(real *s, int64_t n);
/* p = exp(p - lse) on n scores. */
void HEAD_PROBABILITY(real *p, real lse, int64_t n);
void HEAD_DOTS(const head_view *w, const head_grads *g);

enum {
    SHORT_KEYS = 64, /* longest segment of the short way: its scratch stays in L1 and L2 */
    LANES = 8,       /* numbers of one vector; head_dim must be a multiple */
    SHORT_DIM = 128  /* largest head_dim of the short way */
};
/* Numbers of scratch the short way needs: q, k or v transposed twice, two score matrices. */
enum { SHORT_SCRATCH = 2 * SHORT_DIM * SHORT_KEYS + 2 * SHORT_KEYS * SHORT_KEYS };

static inline bool head_is_short(const head_view *w)
{
    return !w->place && w->n <= SHORT_KEYS && w->d % LANES == 0 && w->d <= SHORT_DIM;
}

void SHORT_HEAD_FWD(const head_view *w, real *o, real *lse, real *scratch);
void SHORT_HEAD_BWD(const head_view *w, const head_grads *g, real *scratch);

#endif
