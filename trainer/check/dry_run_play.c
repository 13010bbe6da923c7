/* dry_run_play.c: opens a session as one rank, runs a step, writes its part of a checkpoint, and
 * checks along the way what was read, allocated, received and written. */
#include "trainer/check/dry_run_play.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/hf_export.h"
#include "trainer/checkpoint/hf_write.h"
#include "trainer/checkpoint/rank_sync.h"
#include "trainer/device/shapes.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/model/unit_order.h"
#include "trainer/plan/cost.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/step.h"

plan_input dry_plan_input(const dry *d)
{
    return (plan_input){.conf = &d->conf,
                        .layout = &d->layout,
                        .dims = &d->dims,
                        .params = d->whole,
                        .device = d->planned};
}

/* Checks that the rank has read its own part of the weight files and no more. */
static status check_reading(dry *d, const session *s)
{
    if (!d->source.reads)
        return ST_OK;
    return dry_check(&d->checks, DRY_READ, dry_bytes_to_read(&d->source, s->params),
                     s->params->bytes_read);
}

/* Checks that the run plans as many bytes by its options alone as trainer plan does for the device
 * that this one stands in for, with what the driver and the libraries take of it. */
static status check_whole_plan(dry *d, const session *s)
{
    const int64_t rows = d->conf.training_local_batch_size;
    const plan_input in = dry_plan_input(d);
    recomputes recomputed;
    memory_plan plan;
    TRY(recompute_plan_of(&in, rows, &recomputed));
    TRY(layout_plan_stage(&in, rows, &recomputed, s->mesh.place.pipeline, &plan));
    return dry_check(&d->checks, DRY_WHOLE_PLAN, plan.total, s->planned_by_options);
}

/* Checks that every region of the plan is an allocation of that size, and that the plan of the run
 * is the one that trainer plan makes. What else is allocated holds micro-batches and sums. */
static status check_memory(dry *d, const session *s)
{
    params_sizes size;
    memory_plan own, plan;
    TRY(params_size(s->params, &backend_shapes, true, &size));
    TRY(session_memory_plan(s, &own));
    TRY(check_whole_plan(d, s));
    /* Parameters that no ranks share are packed in blocks with gaps, which no plan counts. */
    if (mesh_comm(&s->mesh, MESH_WHOLE)->size == 1)
        return ST_OK;
    const int64_t region[] = {4 * size.stored,  2 * size.stored,  4 * size.trained,
                              4 * size.trained, 4 * size.trained, size.gathered_bytes,
                              own.activations};
    int64_t taken = 0, planned = 0;
    for (size_t i = 0; i < sizeof region / sizeof *region; i++) {
        int same = 0;
        for (size_t j = 0; j < sizeof region / sizeof *region; j++)
            same += region[j] == region[i];
        planned += region[i];
        if (shapes_allocations(s->device, (size_t)region[i]) >= same)
            taken += region[i];
    }
    const int stage = s->mesh.place.pipeline;
    if (planned > d->checks.stage[stage])
        d->checks.stage[stage] = planned;
    d->checks.beside = (int64_t)shapes_bytes(s->device) - taken;
    TRY(dry_check(&d->checks, DRY_MEMORY, planned, taken));
    plan_input in = dry_plan_input(d);
    in.layout = &s->mesh.layout;
    TRY(layout_plan_stage(&in, d->conf.training_local_batch_size, &s->recomputed, stage, &plan));
    return dry_check(&d->checks, DRY_MEMORY_PLAN,
                     plan.total - plan.staging - memory_gpu_total(&plan.gpu), planned);
}

/* Computes the slots that go between this rank's experts and other ranks in a step, on the
 * assumption that every expert is given as many as any other, as model/exchange.c (even_borders)
 * routes without storage. slots: [layers]. */
static void even_slots(const dry *d, const session *s, received_work *w, received_slots *slots)
{
    const text_dims *t = &d->dims.text;
    const comm *c = mesh_comm(&s->mesh, MESH_EXPERT);
    const int64_t wide = d->layout.expert_tensor > 1 ? d->layout.tensor : 1;
    const int64_t of_layer = w->tokens / w->micro_steps * wide * t->top_k;
    if (t->experts == 0)
        return;
    const int64_t own = t->experts / c->size;
    const int64_t mine =
        of_layer * (c->rank + 1) * own / t->experts - of_layer * c->rank * own / t->experts;
    for (int64_t l = 0; l < t->layers; l++)
        if (dims_layer_is_moe(&d->dims, l))
            slots[l] = (received_slots){.come = w->micro_steps * (c->size - 1) * mine,
                                        .go = w->micro_steps * (of_layer - mine)};
    w->slots = slots;
}

/* Compares the lines of the formula with those of the ledger. A line of the ledger that the formula
 * does not have is an error too. */
static status check_lines(const received_line *line, int n, const comm_ledger *ledger)
{
    const comm_tally *list;
    const int m = comm_ledger_list(ledger, &list);
    for (int i = 0; i < n; i++) {
        int64_t got = 0;
        for (int k = 0; k < m; k++)
            got += strcmp(list[k].what, line[i].what) == 0 ? list[k].step_bytes : 0;
        if (got != line[i].bytes)
            return FAIL(ST_INTERNAL,
                        "%s: the step received %" PRId64 " bytes, and by the formula it should be "
                        "%" PRId64,
                        line[i].what, got, line[i].bytes);
    }
    for (int k = 0; k < m; k++) {
        bool known = list[k].step_calls == 0;
        for (int i = 0; i < n && !known; i++)
            known = strcmp(list[k].what, line[i].what) == 0;
        if (!known)
            return FAIL(ST_INTERNAL,
                        "%s over %s: the step received %" PRId64
                        " bytes, of which no formula knows",
                        list[k].what, list[k].group, list[k].step_bytes);
    }
    return ST_OK;
}

/* Compares the bytes of weights, gradients and replicas, which do not depend on the rows, with what
 * trainer plan says of them: the mean over the first ranks of all stages. */
static status check_plan(dry *d, const session *s, const received_line *line, int n)
{
    static const char *const weights[][2] = {{UNITS_GATHER, UNITS_GATHER_VISION},
                                             {UNITS_REDUCE, UNITS_REDUCE_VISION},
                                             {"sum replicas' gradients", NULL}};
    const layout *l = &d->layout;
    const rates r = rates_h200();
    cost k;
    int64_t got = 0; /* the plan gives the mean over the stages, rounded down, of each kind */
    for (size_t w = 0; w < sizeof weights / sizeof *weights; w++) {
        for (int i = 0; i < n; i++)
            for (int j = 0; j < 2 && weights[w][j]; j++)
                d->stages_got[w] += strcmp(line[i].what, weights[w][j]) == 0 ? line[i].bytes : 0;
        got += d->stages_got[w] / l->pipeline;
    }
    if (s->mesh.place.pipeline + 1 < l->pipeline)
        return ST_OK;
    TRY(cost_of(&d->conf, l, &d->dims, d->whole, &r, &s->recomputed, &k));
    return dry_check(&d->checks, DRY_PLANNED,
                     k.traffic[TRAFFIC_GATHER].bytes + k.traffic[TRAFFIC_REDUCE].bytes +
                         k.traffic[TRAFFIC_REPLICATE].bytes,
                     got);
}

/* The lines of the formula for this rank's step. */
static status lines_of(const dry *d, const session *s, const step_report *step,
                       received_line line[RECEIVED_LINES], int *out_n)
{
    received_work w = step_received_work(s, step);
    received_slots *slots = calloc((size_t)d->dims.text.layers + 1, sizeof *slots);
    if (!slots)
        return FAIL(ST_NO_MEMORY, "no memory for the expert slots of %" PRId64 " layers",
                    d->dims.text.layers);
    even_slots(d, s, &w, slots);
    *out_n = received_lines(s->params, &d->dims, &s->mesh, &w, line);
    free(slots);
    return ST_OK;
}

/* Checks the bytes that a step's collectives have received. */
static status check_calls(dry *d, const session *s, const step_report *step,
                          const comm_ledger *ledger, int rank)
{
    received_line line[RECEIVED_LINES];
    const comm_tally *list;
    const int m = comm_ledger_list(ledger, &list);
    const int64_t of_stage = d->layout.world / d->layout.pipeline;
    int64_t want = 0, got = 0;
    int n;
    if (rank == 0)
        comm_ledger_print(ledger, stdout);
    if (d->layout.world == 1)
        return ST_OK;
    TRY(lines_of(d, s, step, line, &n));
    TRY(check_lines(line, n, ledger));
    for (int i = 0; i < n; i++)
        want += line[i].bytes;
    for (int i = 0; i < m; i++)
        got += list[i].step_bytes;
    TRY(dry_check(&d->checks, DRY_RECEIVED, want, got));
    /* The plan is a mean over stages, and a process knows only its own stage. */
    return rank % of_stage == 0 && (!d->world || d->layout.pipeline == 1)
               ? check_plan(d, s, line, n)
               : ST_OK;
}

/* Checks that this rank made the same calls in each group as the group's first rank, which was
 * played before it. */
static status check_order(dry *d, int rank)
{
    const comm_count *mine = &d->counts[rank];
    for (int g = 0; g < mine->count; g++) {
        const comm_counted *a = &mine->group[g], *b = &d->counts[a->first].group[g];
        if (b->first != a->first || b->size != a->size || a->count != b->count ||
            !hash_equal(a->list, b->list))
            return FAIL(ST_INTERNAL,
                        "group %d of %d ranks: rank %d makes %" PRId64 " calls and rank %d %" PRId64
                        "; they differ in number, in kind or in order",
                        g, a->size, rank, a->count, a->first, b->count);
        TRY(dry_check(&d->checks, DRY_ORDER, b->count, a->count));
    }
    return ST_OK;
}

static status write_part(dry *d, const session *s)
{
    const together t = together_of(s->params);
    int64_t bytes = 0;
    hf_export_options o = {.source = d->conf.model_path,
                           .tokenizer = d->conf.model_tokenizer,
                           .dtype = HF_EXPORT_AS_SOURCE,
                           .writer = t.writer.rank,
                           .writers = t.writer.ranks,
                           .value_bytes = &bytes};
    char training[STATUS_PATH_MAX];
    if (!t.writes)
        return ST_OK;
    TRY(hf_path(training, d->written, FOLDER_TRAINING));
    TRY(file_make_folders(training));
    TRY(hf_export(s->params, s->stream, &d->dims, d->written, &o));
    TRY(train_state_write(s->params, s->stream, t.writer, training));
    return dry_check(&d->checks, DRY_WRITTEN, dry_bytes_to_write(&d->source, s->params), bytes);
}

static status play_opened(dry *d, session *s, const comm_ledger *ledger, int rank)
{
    step_report r;
    dry_owners_note(&d->owners, s->params, rank);
    TRY(check_reading(d, s));
    TRY(check_memory(d, s));
    TRY(step_run(s, 1, &r));
    TRY(check_calls(d, s, &r, ledger, rank));
    if (d->counts) /* if ranks are processes, nccl_double compares their calls */
        TRY(check_order(d, rank));
    TRY(write_part(d, s));
    /* Once they have exchanged this, all ranks have written. */
    return d->world ? dry_ranks_owners(d, s) : ST_OK;
}

static status play_in(dry *d, const world *w, int rank, const resume_point *from)
{
    session s;
    TRY(session_resume(&d->conf, w, from, &s));
    status st =
        from ? dry_check(&d->checks, DRY_GOES_ON, dry_state_bytes(s.params), s.params->bytes_read)
             : play_opened(d, &s, w->ledger, rank);
    if (st == ST_OK && from && d->world)
        st = dry_ranks_checks(d, &s);
    session_close(&s);
    return st;
}

static status play_here(dry *d, int rank, const resume_point *from)
{
    const int size = (int)d->layout.world;
    comm_count again = {0};
    world w = {.place = {rank, size, rank, size, "a dry run"},
               .engine = &comm_count_engine,
               .joined = from ? &again : &d->counts[rank],
               .backend = BACKEND_SHAPES,
               .claims = plan_device_claims(d->planned)};
    TRY(comm_ledger_new(&w.ledger));
    status st = play_in(d, &w, rank, from);
    comm_ledger_free(&w.ledger);
    return st;
}

status dry_play(dry *d, int rank, const resume_point *from)
{
    status st = d->world ? play_in(d, d->world, rank, from) : play_here(d, rank, from);
    return st == ST_OK ? st : status_context(st, "rank %d", rank);
}
