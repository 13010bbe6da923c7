/* SPDX-License-Identifier: Apache-2.0 */
/* pointwise.h: additions, bias gradients, activations, and the input of patches.
 *
 *   add          y[i] = a[i] + b[i], or y[i] += a[i] if b is NULL
 *   scale        y[i] *= factor
 *   bias_grad    db[j] += sum over rows of dy[row, j]
 *   swiglu_fwd   y = silu(gate) up, where a row of x is [gate | up]
 *   gelu_fwd     y = x Phi(x), Phi the normal distribution function
 *   patch_input  out = (x - 127.5) / 127.5 of each pixel byte x
 *
 * SwiGLU is that of Shazeer 2020 (arXiv:2002.05202), GELU that of Hendrycks & Gimpel 2016
 * (arXiv:1606.08415): its tanh approximation in the vision tower's MLP, its exact form with erf in
 * the mergers. */
#ifndef TESSERA_TRAINER_OPS_POINTWISE_H
#define TESSERA_TRAINER_OPS_POINTWISE_H

#include <stdbool.h>

#include "trainer/device/backend.h"

/* n elements of type act, or acc if `acc` is set. y may be a or b. */
typedef struct add_args {
    int64_t n;
    const void *a, *b;
    void *y;
    bool acc;
} add_args;

/* n elements of type act, in place. */
typedef struct scale_args {
    int64_t n;
    double factor;
    void *y;
} scale_args;

/* dy [rows, n] act; db [n] acc, added to. */
typedef struct bias_grad_args {
    int64_t rows, n;
    const void *dy;
    void *db;
} bias_grad_args;

/* x [rows, 2 width], y [rows, width], act. n_valid: one int32 on the device; rows from it on are
 * skipped. NULL: all rows count. */
typedef struct swiglu_fwd_args {
    int64_t rows, width; /* the model's intermediate size */
    const int32_t *n_valid;
    const void *x;
    void *y;
} swiglu_fwd_args;

/* x [rows, 2 width] and dy [rows, width] act; dx [rows, 2 width] act is written and may be x.
 * n_valid as in swiglu_fwd. */
typedef struct swiglu_bwd_args {
    int64_t rows, width;
    const int32_t *n_valid;
    const void *x, *dy;
    void *dx;
} swiglu_bwd_args;

enum { GELU_TANH, GELU_ERF };

/* n elements of type act; kind is GELU_TANH or GELU_ERF. */
typedef struct gelu_fwd_args {
    int kind;
    int64_t n;
    const void *x;
    void *y;
} gelu_fwd_args;

/* n elements of type act; x is the forward's input. dx is written and may be dy. */
typedef struct gelu_bwd_args {
    int kind;
    int64_t n;
    const void *x, *dy;
    void *dx;
} gelu_bwd_args;

/* pixels: bytes of patches of 16 x 16 pixels. A still picture's patch is [768] = (channel, y, x),
 * and is written twice, once for each of the two frames that a patch of the model has. A video's
 * patch is [1536] = (channel, frame, y, x) already. The columns of `out` are (channel, frame, y,
 * x). */
typedef struct patch_input_args {
    int64_t patches;
    bool video;
    const uint8_t *pixels;
    void *out; /* [patches, 1536] act */
} patch_input_args;

#endif
