/* SPDX-License-Identifier: Apache-2.0 */
/* share.c: the rows of a recording that one rank gets. Steps are assigned one at a time, when they
 * are reached; the cost of a row is read from its block once and kept. */
#include "proto/session/share.h"

#include <stdlib.h>

#include "proto/row/assign.h"

struct share {
    const record_reader *record;
    codec *codec;
    const char *path;
    int rank, ranks;
    uint64_t step_rows, first, end; /* steps begin at row `first` */
    uint64_t step;                  /* the step that rank_of describes; UINT64_MAX for none yet */
    int64_t *cost;                  /* [step_rows] */
    int *rank_of;                   /* [step_rows] */
    int64_t *known;                 /* [rows of the file] cost + 1; 0 if not read yet */
    wire_msg *scratch_row;
    arena scratch;
};

status share_new(const replay_options *options, const record_reader *record, codec *coder,
                 uint64_t end, share **out)
{
    if (options->step_rows < 1 || options->rank < 0 || options->rank >= options->ranks)
        return FAIL(ST_INTERNAL, "rank %d of %d cannot get a share of steps of %lld rows",
                    options->rank, options->ranks, (long long)options->step_rows);
    if (options->ranks > options->step_rows) /* a rank without rows would search for ever */
        return FAIL(ST_CONFIG,
                    "there are %d ranks but only %lld rows in a step (training.global_batch_size): "
                    "every rank needs a row of each step",
                    options->ranks, (long long)options->step_rows);
    share *part = calloc(1, sizeof *part);
    if (!part)
        return FAIL(ST_NO_MEMORY, "no memory to share out a recording");
    *part = (share){.record = record,
                    .codec = coder,
                    .path = options->path,
                    .rank = options->rank,
                    .ranks = options->ranks,
                    .step_rows = (uint64_t)options->step_rows,
                    .first = options->skip,
                    .end = end,
                    .step = UINT64_MAX,
                    .cost = calloc((size_t)options->step_rows, sizeof *part->cost),
                    .rank_of = calloc((size_t)options->step_rows, sizeof *part->rank_of),
                    .known = calloc(record_rows(record) + 1, sizeof *part->known)};
    arena_init(&part->scratch, 0);
    status st = part->cost && part->rank_of && part->known
                    ? wire_msg_new(&part->scratch_row)
                    : FAIL(ST_NO_MEMORY, "no memory to share out steps of %lld rows",
                           (long long)options->step_rows);
    if (st != ST_OK)
        share_free(&part);
    else
        *out = part;
    return st;
}

void share_free(share **held)
{
    share *part = *held;
    if (!part)
        return;
    arena_done(&part->scratch);
    wire_msg_free(&part->scratch_row);
    free(part->cost);
    free(part->rank_of);
    free(part->known);
    free(part);
    *held = NULL;
}

static status cost_of(share *part, uint64_t layout, int64_t *out)
{
    if (!part->known[layout]) {
        row_measure measure;
        arena_reset(&part->scratch);
        TRY(record_read_block(part->record, layout, part->scratch_row));
        TRY(codec_measure(part->codec, part->scratch_row, part->path, &part->scratch, &measure));
        part->known[layout] = 1 + assign_cost(&measure);
    }
    *out = part->known[layout] - 1;
    return ST_OK;
}

static status assign_step(share *part, uint64_t step)
{
    const uint64_t first = part->first + step * part->step_rows, rows = record_rows(part->record);
    const uint64_t count =
        part->end - first < part->step_rows ? part->end - first : part->step_rows;
    for (uint64_t k = 0; k < count; k++)
        TRY(cost_of(part, (first + k) % rows, &part->cost[k]));
    TRY(assign_rows(part->cost, (int64_t)count, part->ranks, part->rank_of));
    part->step = step;
    return ST_OK;
}

static status know_step(share *part, uint64_t inout_row)
{
    const uint64_t step = (inout_row - part->first) / part->step_rows;
    return part->step == step ? ST_OK : assign_step(part, step);
}

status share_enter(share *rows, uint64_t *inout_row)
{
    const uint64_t k = (*inout_row - rows->first) % rows->step_rows, first = *inout_row - k;
    if (k == 0 || *inout_row >= rows->end)
        return ST_OK;
    TRY(know_step(rows, *inout_row));
    const uint64_t count =
        rows->end - first < rows->step_rows ? rows->end - first : rows->step_rows;
    for (uint64_t j = k; j < count; j++)
        if (rows->rank_of[j] == rows->rank_of[k - 1])
            return ST_OK; /* that rank has more rows in this step */
    *inout_row = first + count;
    return ST_OK;
}

status share_find(share *rows, uint64_t *inout_row)
{
    uint64_t i = *inout_row;
    for (; i < rows->end; i++) {
        TRY(know_step(rows, i));
        if (rows->rank_of[(i - rows->first) % rows->step_rows] == rows->rank)
            break;
    }
    *inout_row = i;
    return ST_OK;
}
