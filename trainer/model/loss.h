/* loss.h: final norm, output head and token loss (equations.md, "Loss"). Only the rows of targets
 * are computed, in chunks, so that logits exist for at most R rows at a time.
 *
 * N targets, H hidden, V vocabulary, T tokens.
 *
 *   z = RMSNorm(h[target_token])  [N, H]      logits = z Wheadt  [R, V] at a time
 *   loss += sum of weight * (logsumexp(logits) - logits[label])
 *
 * The head does not know the model around it; its weights come as pointers. All calls queue work on
 * s and do not wait. */
#ifndef TESSERA_TRAINER_MODEL_LOSS_H
#define TESSERA_TRAINER_MODEL_LOSS_H

#include "trainer/device/backend.h"
#include "trainer/device/space.h"

typedef struct head {
    int64_t hidden, vocab;
    double eps;
    const void *norm, *weight; /* [H], [V, H] act; borrowed */
    void *dnorm, *dweight;     /* their gradients, acc, added to; dweight is NULL if it is frozen */
    /* activations */
    int64_t rows;          /* R */
    void *picked, *z, *dz; /* [max(N, R), H] act */
    void *rstd;            /* [max(N, R)] acc */
    void *logits;          /* [R, V] act */
} head;

/* R if the options name none. The gradient of the weights reads and writes all of its sums for each
 * R targets, and dz has R / 128 x H / 256 tiles of a product: with 2,048 and H 2,048, 128 of them
 * for the 132 multiprocessors of an H200, and 622 MB of logits. With 512 a step of 49,152 targets
 * took 48 ms longer, a quarter of what it takes besides its layers (trainer/ops/layer_time.md). */
enum { LOGIT_ROWS_DEFAULT = 2048 };

/* Takes the head's arrays from sp for at most `targets` targets. act, acc: bytes of an element. */
void head_layout(head *loss_head, space *sp, int64_t targets, size_t act, size_t acc,
                 bool training);

/* The targets of a batch; arrays are in device memory. */
typedef struct head_targets {
    int64_t count;          /* rows that ops run on, padding included */
    const int32_t *token;   /* [count] token whose state predicts the target; -1: padding */
    const int32_t *label;   /* [count] token id to be predicted; -1: padding */
    const void *weight;     /* [count] acc */
    double *loss, *weights; /* sums, added to */
    void *nll;              /* [count] acc, written: negative log-likelihoods; NULL: not wanted */
    int32_t *best;          /* [count] written: likeliest token; NULL: not wanted */
} head_targets;

/* Adds the loss of h [T, H] act, the output of the last layer, to the sums. With `backward` it also
 * writes dh [T, H] and adds the gradients of norm and weight; else dh is ignored. tokens: T. */
WARN_UNUSED status head_loss(const head *loss_head, stream *queue, int64_t tokens, const void *h,
                             const head_targets *targets, bool backward, void *dh);

/* out [count, V] act = logits of the rows of h [T, H] that token [count], a list on the device,
 * names. */
WARN_UNUSED status head_logits(const head *loss_head, stream *queue, const void *h,
                               const int32_t *token, int64_t count, void *out);

#endif
