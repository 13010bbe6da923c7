/* lora.h: low-rank adapters beside frozen matrices (Hu et al. 2021, arXiv:2106.09685).
 *
 *   y = x W + s (x A) B,   s = alpha / r
 *
 * With lengths (DoRA, Liu et al. 2024, arXiv:2402.09353; ops/dora.h) the rows of what is in
 * brackets have a length m of their own, a third row of the registry that begins as their length:
 *
 *   y = x ((m / ||W + s B A||) (W + s B A))t, W [out, in], the norm a constant in backward
 *
 * r is the rank. B starts at 0, so that an adapter changes nothing at first. A linear map
 * W [out, in] has A [r, in] and B [out, r], as PEFT stores them; the experts' W [E, in, out] have
 * A [E, in, r] and B [E, r, out]. A and B are rows of the registry like any other parameter, so the
 * optimiser and checkpoints need not know of them (lora_params.h adds them). Forward keeps nothing:
 * backward computes x A again.
 *
 * If tensor ranks cut W by rows, they cut B the same way and each has all of A; if they cut W
 * by columns, they cut A and each has all of B. Each rank then adds its part of the product, and
 * its part of the gradient of the half that it has whole, which the ranks that own that half sum.
 * Expert-tensor ranks do the same with the width of an expert. An expert's adapter lives on the
 * rank of its expert (exchange.h). */
#ifndef TESSERA_TRAINER_MODEL_LORA_H
#define TESSERA_TRAINER_MODEL_LORA_H

#include "trainer/device/space.h"
#include "trainer/model/params.h"
#include "trainer/model/pass_context.h"

/* The adapter of one matrix; a is NULL if the matrix has none. */
typedef struct lora {
    const param *a, *b;
    const param *lengths; /* m; NULL: none */
    double scale;
    int64_t rank;
} lora;

/* Finds the adapter of row `weight` of the registry. */
lora lora_bind(const param *weight);

/* Shared by all adapters of a model. Slots are token copies sorted by expert (moe.h); if ranks
 * share experts, those of one round (exchange.h). */
typedef struct lora_scratch {
    void *xa,
        *dxa;   /* [rows, r]: s x A, and the gradient of x A; rows: slots with experts, else Tc */
    void *wide; /* [slots, max(2I, H)], I being this rank's part of an expert's width; NULL without
                 * adapters of experts */
    void *z, *norm; /* [Tc, longest out], [longest out]; NULL without lengths */
} lora_scratch;

/* Which adapters there are. */
typedef struct lora_modes {
    int64_t rank; /* 0: none */
    bool experts; /* some belong to experts */
    bool dora;    /* they have lengths */
} lora_modes;

/* Takes the scratch from sp. */
void lora_scratch_layout(lora_scratch *scratch, space *sp, const shape *sizes, lora_modes modes);

/* y += s (x A) B for a linear map. x [rows, in], y [rows, out] with y_stride elements per row. */
WARN_UNUSED status lora_linear_fwd(const pass_context *ctx, const lora *adapter, int64_t rows,
                                   const void *x, void *y, int64_t y_stride);
/* Adds the gradients of A and B, and to dx [rows, in] the adapter's part of x's gradient unless dx
 * is NULL. dy [rows, out] has dy_stride elements per row. */
WARN_UNUSED status lora_linear_bwd(const pass_context *ctx, const lora *adapter, int64_t rows,
                                   const void *x, const void *dy, int64_t dy_stride, void *dx);

/* The same for experts: y += s (x A_e) B_e over `rows` slots sorted by expert. offset [E + 1] holds
 * the first slot of each expert, E being the experts of this rank (ops/gemm.h). x and dy are not
 * written.
 *
 * Backward comes in two calls, because the caller replaces x by its gradient between them:
 * lora_experts_grads adds the gradients of A and B and leaves dxa in the scratch; lora_experts_dx
 * then adds the adapter's part to dx. */
WARN_UNUSED status lora_experts_fwd(const pass_context *ctx, const lora *adapter, int64_t rows,
                                    const int32_t *offset, void *x, void *y);
WARN_UNUSED status lora_experts_grads(const pass_context *ctx, const lora *adapter, int64_t rows,
                                      const int32_t *offset, void *x, void *dy);
WARN_UNUSED status lora_experts_dx(const pass_context *ctx, const lora *adapter, int64_t rows,
                                   const int32_t *offset, void *dx);

#endif
