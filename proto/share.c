/* share.c: the rows of a recording that one rank gets. Steps are assigned one at a time, when they
 * are reached; the cost of a row is read from its block once and kept. */
#include "proto/share.h"

#include <stdlib.h>

#include "proto/assign.h"

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

status share_new(const replay_options *o, const record_reader *record, codec *c, uint64_t end,
                 share **out)
{
    if (o->step_rows < 1 || o->rank < 0 || o->rank >= o->ranks)
        return FAIL(ST_INTERNAL, "rank %d of %d cannot get a share of steps of %lld rows", o->rank,
                    o->ranks, (long long)o->step_rows);
    if (o->ranks > o->step_rows) /* a rank without rows would search for ever */
        return FAIL(ST_CONFIG,
                    "there are %d ranks but only %lld rows in a step (training.global_batch_size): "
                    "every rank needs a row of each step",
                    o->ranks, (long long)o->step_rows);
    share *s = calloc(1, sizeof *s);
    if (!s)
        return FAIL(ST_NO_MEMORY, "no memory to share out a recording");
    *s = (share){.record = record,
                 .codec = c,
                 .path = o->path,
                 .rank = o->rank,
                 .ranks = o->ranks,
                 .step_rows = (uint64_t)o->step_rows,
                 .first = o->skip,
                 .end = end,
                 .step = UINT64_MAX,
                 .cost = calloc((size_t)o->step_rows, sizeof *s->cost),
                 .rank_of = calloc((size_t)o->step_rows, sizeof *s->rank_of),
                 .known = calloc(record_rows(record) + 1, sizeof *s->known)};
    arena_init(&s->scratch, 0);
    status st = s->cost && s->rank_of && s->known
                    ? wire_msg_new(&s->scratch_row)
                    : FAIL(ST_NO_MEMORY, "no memory to share out steps of %lld rows",
                           (long long)o->step_rows);
    if (st != ST_OK)
        share_free(&s);
    else
        *out = s;
    return st;
}

void share_free(share **held)
{
    share *s = *held;
    if (!s)
        return;
    arena_done(&s->scratch);
    wire_msg_free(&s->scratch_row);
    free(s->cost);
    free(s->rank_of);
    free(s->known);
    free(s);
    *held = NULL;
}

static status cost_of(share *s, uint64_t i, int64_t *out)
{
    if (!s->known[i]) {
        row_measure measure;
        arena_reset(&s->scratch);
        TRY(record_read_block(s->record, i, s->scratch_row));
        TRY(codec_measure(s->codec, s->scratch_row, s->path, &s->scratch, &measure));
        s->known[i] = 1 + assign_cost(&measure);
    }
    *out = s->known[i] - 1;
    return ST_OK;
}

static status assign_step(share *s, uint64_t step)
{
    const uint64_t first = s->first + step * s->step_rows, rows = record_rows(s->record);
    const uint64_t n = s->end - first < s->step_rows ? s->end - first : s->step_rows;
    for (uint64_t k = 0; k < n; k++)
        TRY(cost_of(s, (first + k) % rows, &s->cost[k]));
    TRY(assign_rows(s->cost, (int64_t)n, s->ranks, s->rank_of));
    s->step = step;
    return ST_OK;
}

static status know_step(share *s, uint64_t i)
{
    const uint64_t step = (i - s->first) / s->step_rows;
    return s->step == step ? ST_OK : assign_step(s, step);
}

status share_enter(share *s, uint64_t *inout_row)
{
    const uint64_t k = (*inout_row - s->first) % s->step_rows, first = *inout_row - k;
    if (k == 0 || *inout_row >= s->end)
        return ST_OK;
    TRY(know_step(s, *inout_row));
    const uint64_t n = s->end - first < s->step_rows ? s->end - first : s->step_rows;
    for (uint64_t j = k; j < n; j++)
        if (s->rank_of[j] == s->rank_of[k - 1])
            return ST_OK; /* that rank has more rows in this step */
    *inout_row = first + n;
    return ST_OK;
}

status share_find(share *s, uint64_t *inout_row)
{
    uint64_t i = *inout_row;
    for (; i < s->end; i++) {
        TRY(know_step(s, i));
        if (s->rank_of[(i - s->first) % s->step_rows] == s->rank)
            break;
    }
    *inout_row = i;
    return ST_OK;
}
