/* row_work.c: the row that a plan assumes, and the bytes that element-wise ops move. */
#include "trainer/plan/row_work.h"

#include <string.h>

enum { ACT = 2 /* bytes of bf16 */, VQA_DOCUMENT = 313 };
static const int32_t VQA_GRID[3] = {1, 30, 40};

row_kind row_kind_of(const conf *options, const model_dims *dims)
{
    row_kind kind = {.seq_len = options->training_seq_len, .document = options->training_seq_len};
    if (dims->vision.depth == 0 || options->data_format == DATA_TEXT)
        return kind;
    if (kind.document > VQA_DOCUMENT)
        kind.document = VQA_DOCUMENT;
    memcpy(kind.grid, VQA_GRID, sizeof kind.grid);
    if (!options->data_pack) /* the rest of the row is padding, which a shape bucket cuts off */
        kind.seq_len = kind.document;
    return kind;
}

/* Counts the arrays that the forward pass reads and writes. Both passes move about three times as
 * much. */
double cost_layer_bytes(const text_dims *text)
{
    double hidden = (double)text->hidden,
           heads = (double)((text->heads + 2 * text->kv_heads) * text->head_dim);
    double slots = (double)text->top_k, wide = (double)text->expert_width;
    double forward = 10.0 * hidden + 4.0 * heads + slots * (3.0 * hidden + 3.0 * wide);
    return 3.0 * forward * ACT;
}

double cost_block_bytes(const vision_dims *vision)
{
    double forward = 10.0 * (double)vision->hidden + 2.0 * (double)vision->intermediate;
    return 3.0 * forward * ACT;
}

int64_t row_kind_images(const row_kind *row)
{
    return row->grid[0] > 0 ? row->seq_len / row->document : 0; /* the rest of the row is text */
}

void row_kind_flops(const row_kind *row, const model_dims *dims, flops *out)
{
    const int64_t whole = row->seq_len / row->document, rest = row->seq_len % row->document;
    flops sum = {0}, work;
    for (int64_t i = 0; i < whole + (rest > 0); i++) {
        const int64_t length = i < whole ? row->document : rest;
        dims_flops(dims, length, document_pairs(length), row->grid, i < row_kind_images(row),
                   &work);
        flops_add(&sum, &work);
    }
    sum.training = 0;
    *out = sum;
}
