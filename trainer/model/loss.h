/* loss.h: final norm, output head and token loss over the target rows alone, in chunks, so that
 * logits exist for at most `rows` rows at once (spec 4.5).
 *
 * N targets, H hidden, V vocabulary, R logit rows held.
 *
 *   z = RMSNorm(h[target_token])  [N, H]      logits = z Wheadt  [R, V] at a time
 *   loss += sum weight * (logsumexp(logits) - logits[label])
 *
 * Knows nothing of the model around it: weights come as pointers. All calls queue on s. */
#ifndef TESSERA_TRAINER_MODEL_LOSS_H
#define TESSERA_TRAINER_MODEL_LOSS_H

#include "trainer/device/backend.h"
#include "trainer/device/space.h"

typedef struct head {
    int64_t hidden, vocab;
    double eps;
    const void *norm, *weight; /* [H], [V, H] act */
    void *dnorm, *dweight;     /* their gradients, acc; added to; dweight NULL: frozen */
    /* activations */
    int64_t rows;          /* R */
    void *picked, *z, *dz; /* [max(N, R), H] act */
    void *rstd;            /* [max(N, R)] acc */
    void *logits;          /* [R, V] act */
} head;

enum { LOGIT_ROWS_DEFAULT = 512 };

/* targets: capacity N; acc, act: bytes of an element. */
void head_layout(head *l, space *sp, int64_t targets, size_t act, size_t acc, bool training);

typedef struct head_targets {
    int64_t n;              /* rows that ops run on */
    const int32_t *token;   /* [n], -1 = padding */
    const int32_t *label;   /* [n], -1 = padding */
    const void *weight;     /* [n] acc */
    double *loss, *weights; /* device sums, added to */
    void *nll;              /* [n] acc or NULL */
    int32_t *best;          /* [n] or NULL */
} head_targets;

/* h [T, H] act. dh [T, H] written when backward, else ignored. tokens: T. */
WARN_UNUSED status head_loss(const head *l, stream *s, int64_t tokens, const void *h,
                             const head_targets *t, bool backward, void *dh);

/* out [n, V] act: logits of h at these tokens (index list on the device). */
WARN_UNUSED status head_logits(const head *l, stream *s, const void *h, const int32_t *token,
                               int64_t n, void *out);

#endif
