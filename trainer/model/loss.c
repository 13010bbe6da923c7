/* loss.c: the head and loss of loss.h, chunk by chunk. */
#include "trainer/model/loss.h"

#include "trainer/ops/table.h"

static void *index_array(const void *array, int64_t i, size_t size)
{
    return (char *)array + (size_t)i * size;
}

void head_layout(head *l, space *sp, int64_t targets, size_t act, size_t acc, bool training)
{
    int64_t n = targets > l->rows ? targets : l->rows;
    l->picked = space_take(sp, n * l->hidden, act);
    l->z = space_take(sp, n * l->hidden, act);
    l->rstd = space_take(sp, n, acc);
    l->dz = training ? space_take(sp, n * l->hidden, act) : NULL;
    l->logits = space_take(sp, l->rows * l->vocab, act);
}

/* z [n, H] = RMSNorm of the rows of h that token names */
static status pick(const head *l, stream *s, const void *h, const int32_t *token, int64_t n)
{
    TRY(op_rows_gather(s, &(rows_gather_args){
                              .n = n, .width = l->hidden, .index = token, .x = h, .y = l->picked}));
    return op_rmsnorm_fwd(s, &(rmsnorm_fwd_args){.rows = n,
                                                 .n = l->hidden,
                                                 .eps = l->eps,
                                                 .x = l->picked,
                                                 .w = l->norm,
                                                 .y = l->z,
                                                 .rstd = l->rstd});
}

/* logits [n, V] = z Wheadt */
static status project_logits(const head *l, stream *s, const void *z, int64_t n, void *logits)
{
    return op_gemm(s, &(gemm_args){.m = n,
                                   .n = l->vocab,
                                   .k = l->hidden,
                                   .alpha = 1,
                                   .a = z,
                                   .lda = l->hidden,
                                   .b = l->weight,
                                   .ldb = l->hidden,
                                   .trans_b = true,
                                   .c = logits,
                                   .ldc = l->vocab});
}

/* dz [n, H] = dlogits Whead; dWhead += dlogitst z */
static status project_bwd(const head *l, stream *s, const void *z, int64_t n, void *dz)
{
    TRY(op_gemm(s, &(gemm_args){.m = n,
                                .n = l->hidden,
                                .k = l->vocab,
                                .alpha = 1,
                                .a = l->logits,
                                .lda = l->vocab,
                                .b = l->weight,
                                .ldb = l->hidden,
                                .c = dz,
                                .ldc = l->hidden}));
    if (!l->dweight)
        return ST_OK;
    return op_gemm(s, &(gemm_args){.m = l->vocab,
                                   .n = l->hidden,
                                   .k = n,
                                   .alpha = 1,
                                   .a = l->logits,
                                   .lda = l->vocab,
                                   .trans_a = true,
                                   .b = z,
                                   .ldb = l->hidden,
                                   .c = l->dweight,
                                   .ldc = l->hidden,
                                   .c_acc = true,
                                   .accumulate = true});
}

/* Adds the loss of targets [from, from + n), and computes their dz if backward. */
static status compute_chunk(const head *l, stream *s, const head_targets *t, int64_t from,
                            int64_t n, bool backward)
{
    size_t act = st_dtype_size(s->dev->backend->act), acc = st_dtype_size(s->dev->backend->acc);
    const void *z = index_array(l->z, from * l->hidden, act);
    TRY(project_logits(l, s, z, n, l->logits));
    TRY(op_xent(s, &(xent_args){.n = n,
                                .vocab = l->vocab,
                                .label = t->label + from,
                                .weight = index_array(t->weight, from, acc),
                                .logits = l->logits,
                                .backward = backward,
                                .nll = t->nll ? index_array(t->nll, from, acc) : NULL,
                                .best = t->best ? t->best + from : NULL,
                                .loss_sum = t->loss,
                                .weight_sum = t->weights}));
    return backward ? project_bwd(l, s, z, n, index_array(l->dz, from * l->hidden, act)) : ST_OK;
}

status head_loss(const head *l, stream *s, int64_t tokens, const void *h, const head_targets *t,
                 bool backward, void *dh)
{
    size_t act = st_dtype_size(s->dev->backend->act);
    TRY(pick(l, s, h, t->token, t->count));
    for (int64_t from = 0; from < t->count; from += l->rows)
        TRY(compute_chunk(l, s, t, from, t->count - from < l->rows ? t->count - from : l->rows,
                          backward));
    if (!backward)
        return ST_OK;
    TRY(op_rmsnorm_bwd(s, &(rmsnorm_bwd_args){.rows = t->count,
                                              .n = l->hidden,
                                              .x = l->picked,
                                              .w = l->norm,
                                              .rstd = l->rstd,
                                              .dy = l->dz,
                                              .dx = l->dz,
                                              .dw = l->dnorm}));
    TRY(s->dev->backend->zero(s, dh, (size_t)(tokens * l->hidden) * act));
    return op_rows_scatter(s, &(rows_scatter_args){.n = t->count,
                                                   .width = l->hidden,
                                                   .y_rows = tokens,
                                                   .index = t->token,
                                                   .x = l->dz,
                                                   .y = dh,
                                                   .distinct = true});
}

status head_logits(const head *l, stream *s, const void *h, const int32_t *token, int64_t n,
                   void *out)
{
    size_t act = st_dtype_size(s->dev->backend->act);
    for (int64_t from = 0; from < n; from += l->rows) {
        int64_t rows = n - from < l->rows ? n - from : l->rows;
        TRY(pick(l, s, h, token + from, rows));
        TRY(project_logits(l, s, l->z, rows, index_array(out, from * l->vocab, act)));
    }
    return ST_OK;
}
