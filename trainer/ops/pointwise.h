/* pointwise.h: additions, bias gradients, activations, patch input.
 *
 * add: y[i] = a[i] + b[i]; b NULL: y[i] += a[i]. act, or acc where it says so; n elements.
 * scale: y[i] *= factor. act, n elements.
 * bias_grad: db[j] += sum_rows dy[row, j]; dy [rows, n] act, db acc.
 * swiglu: x [rows, 2I] = [gate | up], y [rows, I] = silu(gate) * up; bwd writes dx [rows, 2I]
 *   (dx may be x). Rows from n_valid[0] on (int32 on the device, NULL = rows) are skipped.
 * gelu: kind GELU_TANH (vision MLP) or GELU_ERF (mergers); bwd dx may be dy.
 * patch_input: u8 pixels -> act (x - 127.5) / 127.5. still: [S, 768] both temporal frames equal ->
 *   out [S, 1536] with columns (channel, frame, y, x); video: [V, 1536] u8 in that order already.
 */
#ifndef TESSERA_TRAINER_OPS_POINTWISE_H
#define TESSERA_TRAINER_OPS_POINTWISE_H

#include <stdbool.h>

#include "trainer/device/backend.h"

typedef struct add_args {
    int64_t n;
    const void *a, *b;
    void *y;
    bool acc;
} add_args;

typedef struct scale_args {
    int64_t n;
    double factor;
    void *y;
} scale_args;

typedef struct bias_grad_args {
    int64_t rows, n;
    const void *dy;
    void *db;
} bias_grad_args;

typedef struct swiglu_fwd_args {
    int64_t rows, width; /* I */
    const int32_t *n_valid;
    const void *x;
    void *y;
} swiglu_fwd_args;

typedef struct swiglu_bwd_args {
    int64_t rows, width;
    const int32_t *n_valid;
    const void *x, *dy;
    void *dx;
} swiglu_bwd_args;

enum { GELU_TANH, GELU_ERF };

typedef struct gelu_fwd_args {
    int kind;
    int64_t n;
    const void *x;
    void *y;
} gelu_fwd_args;

typedef struct gelu_bwd_args {
    int kind;
    int64_t n;
    const void *x, *dy;
    void *dx;
} gelu_bwd_args;

typedef struct patch_input_args {
    int64_t patches;
    bool video;
    const uint8_t *pixels;
    void *out; /* [patches, 1536] act */
} patch_input_args;

#endif
