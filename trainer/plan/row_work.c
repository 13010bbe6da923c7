/* row_work.c: the assumed row, and the bytes of element-wise work. */
#include "trainer/plan/row_work.h"

#include <string.h>

enum { ACT = 2 /* bytes of bf16 */, VQA_DOCUMENT = 313 };
static const int32_t VQA_GRID[3] = {1, 30, 40};

row_kind row_kind_of(const conf *c, const model_dims *d)
{
    row_kind r = {.seq_len = c->training_seq_len, .document = c->training_seq_len};
    if (d->vision.depth == 0 || c->data_format == DATA_TEXT)
        return r;
    if (r.document > VQA_DOCUMENT)
        r.document = VQA_DOCUMENT;
    memcpy(r.grid, VQA_GRID, sizeof r.grid);
    if (!c->data_pack) /* the rest of the row is padding, which a shape bucket cuts off */
        r.seq_len = r.document;
    return r;
}

/* Counts the arrays that the forward pass reads and writes. Both passes move about three times as
 * much. */
double cost_layer_bytes(const text_dims *t)
{
    double h = (double)t->hidden, heads = (double)((t->heads + 2 * t->kv_heads) * t->head_dim);
    double slots = (double)t->top_k, wide = (double)t->expert_width;
    double forward = 10.0 * h + 4.0 * heads + slots * (3.0 * h + 3.0 * wide);
    return 3.0 * forward * ACT;
}

double cost_block_bytes(const vision_dims *v)
{
    double forward = 10.0 * (double)v->hidden + 2.0 * (double)v->intermediate;
    return 3.0 * forward * ACT;
}

int64_t row_kind_images(const row_kind *r)
{
    return r->grid[0] > 0 ? r->seq_len / r->document : 0; /* the rest of the row is text */
}

void row_kind_flops(const row_kind *r, const model_dims *d, flops *out)
{
    const int64_t whole = r->seq_len / r->document, rest = r->seq_len % r->document;
    flops sum = {0}, f;
    for (int64_t i = 0; i < whole + (rest > 0); i++) {
        const int64_t length = i < whole ? r->document : rest;
        dims_flops(d, length, document_pairs(length), r->grid, i < row_kind_images(r), &f);
        flops_add(&sum, &f);
    }
    sum.training = 0;
    *out = sum;
}
