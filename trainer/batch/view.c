/* view.c: the part of a micro-batch that a rank works on, from the arrays of the whole rows. */
#include "trainer/batch/view.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/batch/row_share.h"

status view_scratch_new(const batch_caps *whole, const row_share *share, view_scratch *out)
{
    int64_t all = row_share_tokens(share, whole->tokens) * row_share_ranks(share);
    out->order = calloc((size_t)all + 1, sizeof(int32_t));
    out->owner = calloc((size_t)all + 1, sizeof(int32_t));
    if (out->order && out->owner)
        return ST_OK;
    view_scratch_done(out);
    return FAIL(ST_NO_MEMORY, "no memory to share out %lld tokens", (long long)all);
}

void view_scratch_done(view_scratch *scratch)
{
    free(scratch->order);
    free(scratch->owner);
    *scratch = (view_scratch){0};
}

/* Writes the borders of each document's queries among the `context` tokens of this context rank. */
static void put_borders(const int32_t *order, int64_t context, const device_batch *whole,
                        device_batch *mine)
{
    int64_t i = 0;
    mine->cu_docs[0] = 0;
    for (int64_t doc = 0; doc < whole->docs; doc++) {
        while (i < context && order[i] >= 0 && order[i] < whole->cu_docs[doc + 1])
            i++;
        mine->cu_docs[doc + 1] = (int32_t)i;
    }
    for (int64_t doc = whole->docs; doc < mine->cap.docs; doc++)
        mine->cu_docs[doc + 1] = mine->cu_docs[doc];
}

/* Writes where the keys of all context ranks, gathered end to end, go in packed order, and back. */
static void put_keys(const view_scratch *scratch, const int32_t *own, int64_t each, int64_t all,
                     const device_batch *whole, device_batch *mine)
{
    for (int64_t j = 0; j < all; j++)
        mine->key_row[j] = -1;
    for (int64_t i = 0; i < all; i++) {
        mine->key_back[i] = scratch->order[i];
        if (scratch->order[i] >= 0)
            mine->key_row[scratch->order[i]] = (int32_t)i;
    }
    for (int64_t i = 0; i < each; i++)
        mine->query_key[i] = own[i] >= 0 ? own[i] : 0;
    for (int64_t doc = 0; doc <= mine->cap.docs; doc++)
        mine->cu_keys[doc] = whole->cu_docs[doc < whole->docs ? doc : whole->docs];
}

static void put_tokens(const int32_t *own, int64_t each, const device_batch *whole,
                       device_batch *mine)
{
    *mine->n_tokens = 0;
    for (int64_t i = 0; i < mine->cap.tokens; i++) {
        int32_t from = i < each ? own[i] : -1;
        mine->input_ids[i] = from < 0 ? 0 : whole->input_ids[from];
        mine->token_samples[i] = from < 0 ? 0 : whole->token_samples[from];
        mine->text_index[i] = from < 0 ? -1 : whole->text_index[from];
        mine->visual_index[i] = from < 0 ? -1 : whole->visual_index[from];
        *mine->n_tokens += from >= 0;
    }
}

/* Writes the targets of the tokens at places [first, first + each) in the order of all ranks.
 * place: the place of each packed token in that order. */
static void put_targets(const int32_t *place, int64_t first, int64_t each, size_t acc,
                        const device_batch *whole, device_batch *mine)
{
    int64_t k = 0;
    for (int64_t i = 0; i < whole->targets; i++) {
        int64_t at = place[whole->target_token[i]] - first;
        if (at < 0 || at >= each)
            continue;
        mine->target_token[k] = (int32_t)at;
        mine->target_label[k] = whole->target_label[i];
        memcpy((char *)mine->target_weight + (size_t)k * acc,
               (const char *)whole->target_weight + (size_t)i * acc, acc);
        mine->host_target_reply[k++] = whole->host_target_reply[i];
    }
    mine->targets = k;
    for (; k < mine->cap.targets; k++) {
        mine->target_token[k] = mine->target_label[k] = -1;
        memset((char *)mine->target_weight + (size_t)k * acc, 0, acc);
    }
}

static double sum_of(const void *weight, int64_t bytes, st_dtype acc)
{
    double sum = 0;
    for (int64_t i = 0; i < bytes; i++)
        sum += acc == DT_F64 ? ((const double *)weight)[i] : (double)((const float *)weight)[i];
    return sum;
}

status view_make(const view_scratch *scratch, const device_batch *whole, int64_t stride,
                 int64_t each, st_dtype acc, device_batch *mine)
{
    const row_share *share = &mine->share;
    int64_t context = each * share->tensor, all = context * share->context;
    const int32_t *queries = scratch->order + share->context_rank * context;
    TRY(row_share_order(whole->cu_docs, whole->doc_prefix, whole->docs, share->context, context,
                        scratch->order, scratch->owner, &mine->context_uneven));
    for (int64_t i = 0; i < all; i++)
        if (scratch->order[i] >= 0)
            scratch->owner[scratch->order[i]] = (int32_t)i;
    put_tokens(queries + share->tensor_rank * each, each, whole, mine);
    put_targets(scratch->owner, row_share_rank(share) * each, each, st_dtype_size(acc), whole,
                mine);
    put_borders(queries, context, whole, mine);
    for (int axis = 0; axis < 3; axis++)
        for (int64_t i = 0; i < context; i++)
            mine->positions[axis * context + i] =
                queries[i] < 0 ? 0 : whole->positions[axis * stride + queries[i]];
    if (share->context > 1)
        put_keys(scratch, queries, context, all, whole, mine);
    memcpy(mine->doc_prefix, whole->doc_prefix, (size_t)mine->cap.docs * sizeof(int32_t));
    mine->tokens = each;
    mine->docs = whole->docs;
    mine->weight = sum_of(mine->target_weight, mine->targets, acc);
    return ST_OK;
}
