/* lora.h: low-rank adapters beside frozen matrices (Hu et al. 2021, arXiv:2106.09685).
 *
 *   y = x W + s (x A) B,   s = alpha / r;   B starts at 0, so that nothing changes at first
 *
 * r rank. A linear map W [out, in] has A [r, in] and B [out, r], as files of adapters have them;
 * the experts' W [E, in, out] have A [E, in, r] and B [E, r, out]. Rows of the registry as any
 * other: optimiser and checkpoints know nothing of them. Forward keeps nothing: x A is made again.
 *
 * Where tensor ranks cut W by rows, B is cut so and A is whole; by columns, A is cut so and B
 * whole: each rank adds its part of the product, and of the whole one's gradient, which its owners
 * sum. Expert-tensor ranks likewise, of the width of an expert. Adapters of experts are where their
 * experts are (exchange.h).
 */
#ifndef TESSERA_TRAINER_MODEL_LORA_H
#define TESSERA_TRAINER_MODEL_LORA_H

#include "trainer/device/space.h"
#include "trainer/model/params.h"
#include "trainer/model/pass_context.h"

/* The adapter of one matrix, bound; a NULL: none. */
typedef struct lora {
    const param *a, *b;
    double scale;
    int64_t rank;
} lora;

lora lora_bind(const param *w);

typedef struct lora_scratch {
    void *xa,
        *dxa;   /* [rows, r]: s x A, and the gradient of x A; rows: slots with experts, else Tc */
    void *wide; /* [slots, max(2I, H)]; NULL without adapters of experts. Slots: of a round, where
                 * ranks share experts; I: this rank's part */
} lora_scratch;

void lora_scratch_layout(lora_scratch *t, space *sp, const shape *z, int64_t rank, bool experts);

/* A linear map's share; x [rows, in], y and dy [rows, out] with a stride in elements. */
WARN_UNUSED status lora_linear_fwd(const pass_context *r, const lora *l, int64_t rows,
                                   const void *x, void *y, int64_t y_stride);
/* dx [rows, in] added to; NULL: not wanted. */
WARN_UNUSED status lora_linear_bwd(const pass_context *r, const lora *l, int64_t rows,
                                   const void *x, const void *dy, int64_t dy_stride, void *dx);

/* The experts' share over `rows` slots sorted by expert; offset [E + 1] as grouped_gemm has it, E
 * experts of this rank. y added to. The backward in two parts, since dx takes the place of x
 * between them: gradients of A and B, which leave dxa; then dx, added to. */
WARN_UNUSED status lora_experts_fwd(const pass_context *r, const lora *l, int64_t rows,
                                    const int32_t *offset, void *x, void *y);
WARN_UNUSED status lora_experts_grads(const pass_context *r, const lora *l, int64_t rows,
                                      const int32_t *offset, void *x, void *dy);
WARN_UNUSED status lora_experts_dx(const pass_context *r, const lora *l, int64_t rows,
                                   const int32_t *offset, void *dx);

#endif
