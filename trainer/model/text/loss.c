/* SPDX-License-Identifier: Apache-2.0 */
/* loss.c: the head and loss of decoder.h, chunk by chunk. */

#include "trainer/model/text/decoder.h"
#include "trainer/ops/table.h"

void head_layout(head *loss_head, space *sp, int64_t targets, size_t act, size_t acc, bool training)
{
    int64_t count = targets > loss_head->rows ? targets : loss_head->rows;
    loss_head->picked = space_take(sp, count * loss_head->hidden, act);
    loss_head->z = space_take(sp, count * loss_head->hidden, act);
    loss_head->rstd = space_take(sp, count, acc);
    loss_head->dz = training ? space_take(sp, count * loss_head->hidden, act) : NULL;
    loss_head->logits = space_take(sp, loss_head->rows * loss_head->vocab, act);
}

/* z [rows, H] = RMSNorm of the rows of h that token names */
static status pick(const head *loss_head, stream *queue, const void *h, const int32_t *token,
                   int64_t rows)
{
    TRY(op_rows_gather(queue, &(rows_gather_args){.n = rows,
                                                  .width = loss_head->hidden,
                                                  .index = token,
                                                  .x = h,
                                                  .y = loss_head->picked}));
    return op_rmsnorm_fwd(queue, &(rmsnorm_fwd_args){.rows = rows,
                                                     .n = loss_head->hidden,
                                                     .eps = loss_head->eps,
                                                     .x = loss_head->picked,
                                                     .w = loss_head->norm,
                                                     .y = loss_head->z,
                                                     .rstd = loss_head->rstd});
}

/* logits [rows, V] = z Wheadt */
static status project_logits(const head *loss_head, stream *queue, const void *z, int64_t rows,
                             void *logits)
{
    return op_gemm(queue, &(gemm_args){.m = rows,
                                       .n = loss_head->vocab,
                                       .k = loss_head->hidden,
                                       .alpha = 1,
                                       .a = z,
                                       .lda = loss_head->hidden,
                                       .b = loss_head->weight,
                                       .ldb = loss_head->hidden,
                                       .trans_b = true,
                                       .c = logits,
                                       .ldc = loss_head->vocab});
}

/* dz [bytes, H] = dlogits Whead; dWhead += dlogitst z */
static status project_bwd(const head *loss_head, stream *queue, const void *z, int64_t bytes,
                          void *dz)
{
    TRY(op_gemm(queue, &(gemm_args){.m = bytes,
                                    .n = loss_head->hidden,
                                    .k = loss_head->vocab,
                                    .alpha = 1,
                                    .a = loss_head->logits,
                                    .lda = loss_head->vocab,
                                    .b = loss_head->weight,
                                    .ldb = loss_head->hidden,
                                    .c = dz,
                                    .ldc = loss_head->hidden}));
    if (!loss_head->dweight)
        return ST_OK;
    return op_gemm(queue, &(gemm_args){.m = loss_head->vocab,
                                       .n = loss_head->hidden,
                                       .k = bytes,
                                       .alpha = 1,
                                       .a = loss_head->logits,
                                       .lda = loss_head->vocab,
                                       .trans_a = true,
                                       .b = z,
                                       .ldb = loss_head->hidden,
                                       .c = loss_head->dweight,
                                       .ldc = loss_head->hidden,
                                       .c_acc = true,
                                       .accumulate = true});
}

/* Adds the loss of targets [from, from + count), and computes their dz if backward. */
static status compute_chunk(const head *loss_head, stream *queue, const head_targets *targets,
                            int64_t from, int64_t count, bool backward)
{
    size_t act = st_dtype_size(queue->dev->backend->act),
           acc = st_dtype_size(queue->dev->backend->acc);
    const void *z = at(loss_head->z, from * loss_head->hidden, act);
    TRY(project_logits(loss_head, queue, z, count, loss_head->logits));
    TRY(op_xent(queue, &(xent_args){.n = count,
                                    .vocab = loss_head->vocab,
                                    .label = targets->label + from,
                                    .weight = at(targets->weight, from, acc),
                                    .logits = loss_head->logits,
                                    .backward = backward,
                                    .nll = targets->nll ? at(targets->nll, from, acc) : NULL,
                                    .best = targets->best ? targets->best + from : NULL,
                                    .loss_sum = targets->loss,
                                    .weight_sum = targets->weights}));
    return backward ? project_bwd(loss_head, queue, z, count,
                                  at(loss_head->dz, from * loss_head->hidden, act))
                    : ST_OK;
}

status head_loss(const head *loss_head, stream *queue, int64_t tokens, const void *h,
                 const head_targets *targets, bool backward, void *dh)
{
    size_t act = st_dtype_size(queue->dev->backend->act);
    TRY(pick(loss_head, queue, h, targets->token, targets->count));
    for (int64_t from = 0; from < targets->count; from += loss_head->rows)
        TRY(compute_chunk(loss_head, queue, targets, from,
                          targets->count - from < loss_head->rows ? targets->count - from
                                                                  : loss_head->rows,
                          backward));
    if (!backward)
        return ST_OK;
    TRY(op_rmsnorm_bwd(queue, &(rmsnorm_bwd_args){.rows = targets->count,
                                                  .n = loss_head->hidden,
                                                  .x = loss_head->picked,
                                                  .w = loss_head->norm,
                                                  .rstd = loss_head->rstd,
                                                  .dy = loss_head->dz,
                                                  .dx = loss_head->dz,
                                                  .dw = loss_head->dnorm}));
    TRY(queue->dev->backend->zero(queue, dh, (size_t)(tokens * loss_head->hidden) * act));
    return op_rows_scatter(queue, &(rows_scatter_args){.n = targets->count,
                                                       .width = loss_head->hidden,
                                                       .y_rows = tokens,
                                                       .index = targets->token,
                                                       .x = loss_head->dz,
                                                       .y = dh,
                                                       .distinct = true});
}

status head_logits(const head *loss_head, stream *queue, const void *h, const int32_t *token,
                   int64_t count, void *out)
{
    size_t act = st_dtype_size(queue->dev->backend->act);
    for (int64_t from = 0; from < count; from += loss_head->rows) {
        int64_t rows = count - from < loss_head->rows ? count - from : loss_head->rows;
        TRY(pick(loss_head, queue, h, token + from, rows));
        TRY(project_logits(loss_head, queue, loss_head->z, rows,
                           at(out, from * loss_head->vocab, act)));
    }
    return ST_OK;
}
