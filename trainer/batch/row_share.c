/* SPDX-License-Identifier: Apache-2.0 */
/* row_share.c: divides tokens and visual items by their work, the largest first, and cuts a rank's
 * part out of the arrays of the whole rows. */
#include "trainer/batch/row_share.h"

#include <stdlib.h>
#include <string.h>

enum {
    FINE = 8, /* a document with over 1/8 of a rank's work is cut; the others then even it out */
    /* The same in rows with prefixes. There ranks with equal numbers of tokens have equal work only
     * if they have equal shares of the prefixes, whose tokens see fewer keys than those of branches
     * do. */
    FINE_PREFIXES = 32,
    MERGED = MERGE_SIDE * MERGE_SIDE
};

/* Work to be given to a rank: a document, or a visual item. */
typedef struct job {
    double work;
    int32_t first, count; /* the first of its tokens; or the item's number and its merged rows */
    int32_t before;       /* tokens of the document's prefix */
} job;

typedef struct worker {
    double work;
    int64_t room;
} worker;

/* Orders jobs by work, the most first; equal ones keep their order. */
static int by_work(const void *one, const void *other)
{
    const job *first = one, *second = other;
    if (first->work != second->work)
        return first->work > second->work ? -1 : 1;
    return first->first < second->first ? -1 : first->first > second->first;
}

/* The worker with the least work that still has room for `count`; -1 if none has. */
static int64_t idlest(const worker *workers, int64_t ranks, int64_t count)
{
    int64_t best = -1;
    for (int64_t i = 0; i < ranks; i++)
        if (workers[i].room >= count && (best < 0 || workers[i].work < workers[best].work))
            best = i;
    return best;
}

static int64_t roomiest(const worker *workers, int64_t ranks)
{
    int64_t best = 0;
    for (int64_t i = 1; i < ranks; i++)
        if (workers[i].room > workers[best].room)
            best = i;
    return best;
}

static double uneven(const worker *workers, int64_t ranks)
{
    double most = 0, sum = 0;
    for (int64_t i = 0; i < ranks; i++) {
        most = workers[i].work > most ? workers[i].work : most;
        sum += workers[i].work;
    }
    return sum > 0 ? most * (double)ranks / sum : 1;
}

/* How many pairs of a query and a key that it sees the tokens [from, to) of a sample make. */
static double causal_work(int64_t from, int64_t to)
{
    return 0.5 * ((double)to * (double)(to + 1) - (double)from * (double)(from + 1));
}

typedef struct tokens_share {
    const int32_t *cu;
    worker *by_rank;
    int32_t *owner;
    int64_t ranks;
} tokens_share;

/* before: tokens of its sample that come before token `first`. */
static void give_tokens(tokens_share *share, int64_t rank, int64_t first, int64_t count,
                        int64_t before)
{
    for (int64_t i = first; i < first + count; i++)
        share->owner[i] = (int32_t)rank;
    share->by_rank[rank].room -= count;
    share->by_rank[rank].work += causal_work(before, before + count);
}

/* Cuts the end of a document into 2 * ranks equal pieces and gives each rank two of them, the same
 * number counted from the front and from the back. Returns how many tokens are left at the
 * beginning. */
static int64_t give_from_both_ends(tokens_share *share, int64_t first, int64_t count,
                                   int64_t before)
{
    int64_t pieces = 2 * share->ranks, each = count / pieces, left = count % pieces;
    for (int64_t i = 0; i < pieces; i++) {
        const int64_t at = left + i * each;
        give_tokens(share, i < share->ranks ? i : pieces - 1 - i, first + at, each, before + at);
    }
    return left;
}

/* Gives out jobs: documents, or what is left at the beginning of one. */
static void give_jobs(tokens_share *share, const job *jobs, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t first = jobs[i].first, left = jobs[i].count, before = jobs[i].before;
        while (left > 0) {
            int64_t rank = idlest(share->by_rank, share->ranks, left);
            rank = rank < 0 ? roomiest(share->by_rank, share->ranks) : rank;
            int64_t part = share->by_rank[rank].room < left ? share->by_rank[rank].room : left;
            give_tokens(share, rank, first, part, before);
            first += part;
            before += part;
            left -= part;
        }
    }
}

/* Tokens of the document's prefix. */
static int64_t tokens_before(const int32_t *cu, const int32_t *prefix, int64_t doc)
{
    return prefix && prefix[doc] >= 0 ? cu[prefix[doc] + 1] - cu[prefix[doc]] : 0;
}

status row_share_order(const int32_t *cu, const int32_t *prefix, int64_t n_docs, int64_t ranks,
                       int64_t each, int32_t *order, int32_t *owner, double *out_uneven)
{
    double all = 0;
    int64_t count = 0, fine = FINE;
    job *jobs = malloc((size_t)(n_docs > 0 ? n_docs : 1) * sizeof *jobs);
    worker *workers = calloc((size_t)ranks, sizeof *workers);
    if (!jobs || !workers) {
        free(jobs);
        free(workers);
        return FAIL(ST_NO_MEMORY, "no memory to share out %lld documents", (long long)n_docs);
    }
    tokens_share share = {cu, workers, owner, ranks};
    for (int64_t i = 0; i < n_docs; i++) {
        const int64_t before = tokens_before(cu, prefix, i);
        all += causal_work(before, before + cu[i + 1] - cu[i]);
        fine = before > 0 ? FINE_PREFIXES : fine;
    }
    for (int64_t j = 0; j < ranks; j++)
        workers[j].room = each;
    for (int64_t i = 0; i < n_docs; i++) {
        int64_t left = cu[i + 1] - cu[i];
        const int64_t before = tokens_before(cu, prefix, i);
        if (ranks > 1 && causal_work(before, before + left) * (double)(fine * ranks) > all)
            left = give_from_both_ends(&share, cu[i], left, before);
        jobs[count++] =
            (job){causal_work(before, before + left), cu[i], (int32_t)left, (int32_t)before};
    }
    qsort(jobs, (size_t)count, sizeof *jobs, by_work);
    give_jobs(&share, jobs, count);
    for (int64_t j = 0; j < ranks; j++) {
        int64_t at = 0, end = n_docs > 0 ? cu[n_docs] : 0;
        for (int64_t k = 0; k < end; k++)
            if (owner[k] == j)
                order[j * each + at++] = (int32_t)k;
        while (at < each)
            order[j * each + at++] = -1;
    }
    *out_uneven = uneven(workers, ranks);
    free(jobs);
    free(workers);
    return ST_OK;
}

/* Multiply-adds of an item in one block of the tower: products per patch, attention per frame. */
static double item_work(const vision_dims *dims, const int32_t *grid)
{
    double frame = (double)grid[1] * grid[2], patches = (double)grid[0] * frame;
    double products = 4.0 * (double)dims->hidden * (double)dims->hidden +
                      2.0 * (double)dims->hidden * (double)dims->intermediate;
    return patches * (products + 2.0 * (double)dims->hidden * frame);
}

status row_share_items(const row *rows, int64_t n_rows, const vision_dims *dims, int64_t ranks,
                       item_place *out, int64_t *out_merged, double *out_uneven)
{
    int64_t count = 0, at = 0;
    for (int64_t i = 0; i < n_rows; i++)
        count += rows[i].n_items;
    job *jobs = malloc((size_t)(count > 0 ? count : 1) * sizeof *jobs);
    worker *workers = calloc((size_t)ranks, sizeof *workers);
    int64_t *merged = calloc((size_t)ranks, sizeof *merged);
    if (!jobs || !workers || !merged) {
        free(jobs);
        free(workers);
        free(merged);
        return FAIL(ST_NO_MEMORY, "no memory to share out %lld images", (long long)count);
    }
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t k = 0; k < rows[i].n_items; k++, at++) {
            const int32_t *grid = rows[i].grid_thw + 3 * k;
            jobs[at] =
                (job){item_work(dims, grid), (int32_t)at, grid[0] * grid[1] * grid[2] / MERGED};
        }
    if (ranks > 1)
        qsort(jobs, (size_t)count, sizeof *jobs, by_work);
    for (int64_t i = 0; i < count; i++) {
        int64_t rank = idlest(workers, ranks, 0);
        workers[rank].work += jobs[i].work;
        out[jobs[i].first].rank = (int32_t)rank;
        jobs[i].work = 0;
    }
    /* back to the order of the rows */
    qsort(jobs, (size_t)count, sizeof *jobs, by_work);
    *out_merged = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t *first = &merged[out[i].rank];
        out[i].first = (int32_t)*first;
        *first += jobs[i].count;
        *out_merged = *first > *out_merged ? *first : *out_merged;
    }
    *out_uneven = uneven(workers, ranks);
    free(jobs);
    free(workers);
    free(merged);
    return ST_OK;
}

/* ---- a rank's part ---- */

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
