/* SPDX-License-Identifier: Apache-2.0 */
/* dry_run_play.c: opens a session as one rank, runs a step, writes its part of a checkpoint, and
 * checks along the way what was read, allocated, received and written. */
#include "tests/dry_run/dry_run_play.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_export.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/save/save_ranks.h"
#include "trainer/checkpoint/save/writer.h"
#include "tests/dry_run/shapes.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/model/params/unit_order.h"
#include "trainer/plan/cost.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/step.h"

plan_input dry_plan_input(const dry *run)
{
    return (plan_input){.conf = &run->conf,
                        .layout = &run->layout,
                        .dims = &run->dims,
                        .params = run->whole,
                        .device = run->planned};
}

/* Checks that the rank has read its own part of the weight files and no more. */
static status check_reading(dry *played, const session *run)
{
    if (!played->source.reads)
        return ST_OK;
    return dry_check(&played->checks, DRY_READ,
                     dry_bytes_to_read(&played->source, run->params, false),
                     run->params->bytes_read);
}

/* Checks that the run plans as many bytes by its options alone as trainer plan does for the device
 * that this one stands in for, with what the driver and the libraries take of it. */
static status check_whole_plan(dry *played, const session *run)
{
    const int64_t rows = played->conf.training_local_batch_size;
    const plan_input in = dry_plan_input(played);
    recomputes recomputed;
    memory_plan plan;
    TRY(recompute_plan_of(&in, rows, &recomputed));
    TRY(layout_plan_stage(&in, rows, &recomputed, run->mesh.place.pipeline, &plan));
    return dry_check(&played->checks, DRY_WHOLE_PLAN, plan.total, run->planned_by_options);
}

/* Checks that every region of the plan is an allocation of that size, and that the plan of the run
 * is the one that trainer plan makes. What else is allocated holds micro-batches and sums. */
static status check_memory(dry *played, const session *run)
{
    params_sizes size;
    memory_plan own, plan;
    TRY(params_size(run->params, &backend_shapes, true, &size));
    TRY(session_memory_plan(run, &own));
    TRY(check_whole_plan(played, run));
    /* Moments on the host have one allocation for the buffers of both blocks. */
    const bool rest = size.moments_on_host;
    const int64_t region[] = {size.values,
                              size.acts,
                              size.grads,
                              rest ? own.moments : size.moments,
                              rest ? 0 : size.moments,
                              size.unwanted,
                              size.gathered_bytes,
                              own.activations,
                              size.codes,
                              size.expanded};
    int64_t taken = 0, planned = 0;
    for (size_t i = 0; i < sizeof region / sizeof *region; i++) {
        int same = 0;
        for (size_t j = 0; j < sizeof region / sizeof *region; j++)
            same += region[j] == region[i];
        planned += region[i];
        if (shapes_allocations(run->device, (size_t)region[i]) >= same)
            taken += region[i];
    }
    const int stage = run->mesh.place.pipeline;
    if (planned > played->checks.stage[stage])
        played->checks.stage[stage] = planned;
    played->checks.beside = (int64_t)shapes_bytes(run->device) - taken;
    TRY(dry_check(&played->checks, DRY_MEMORY, planned, taken));
    if (memory_resting(&own))
        TRY(dry_check(&played->checks, DRY_HOST, memory_resting(&own),
                      (int64_t)shapes_host_bytes(run->device)));
    plan_input in = dry_plan_input(played);
    in.layout = &run->mesh.layout;
    TRY(layout_plan_stage(&in, played->conf.training_local_batch_size, &run->recomputed, stage,
                          &plan));
    return dry_check(&played->checks, DRY_MEMORY_PLAN,
                     plan.total - plan.staging - memory_gpu_total(&plan.gpu), planned);
}

/* Computes the slots that go between this rank's experts and other ranks in a step, on the
 * assumption that every expert is given as many as any other, as model/exchange/exchange.c (even_borders)
 * routes without storage. slots: [layers]. */
static void even_slots(const dry *played, const session *run, received_work *work,
                       received_slots *slots)
{
    const text_dims *text = &played->dims.text;
    const comm *group = mesh_comm(&run->mesh, MESH_EXPERT);
    const int64_t wide = played->layout.expert_tensor > 1 ? played->layout.tensor : 1;
    const int64_t of_layer = work->tokens / work->micro_steps * wide * text->top_k;
    if (text->experts == 0)
        return;
    const int64_t own = text->experts / group->size;
    const int64_t mine = of_layer * (group->rank + 1) * own / text->experts -
                         of_layer * group->rank * own / text->experts;
    for (int64_t layer = 0; layer < text->layers; layer++)
        if (dims_layer_is_moe(&played->dims, layer))
            slots[layer] = (received_slots){.come = work->micro_steps * (group->size - 1) * mine,
                                            .go = work->micro_steps * (of_layer - mine)};
    work->slots = slots;
}

/* Compares the lines of the formula with those of the ledger. A line of the ledger that the formula
 * does not have is an error too. */
static status check_lines(const received_line *line, int count, const comm_ledger *ledger)
{
    const comm_tally *list;
    const int lines = comm_ledger_list(ledger, &list);
    for (int i = 0; i < count; i++) {
        int64_t got = 0;
        for (int k = 0; k < lines; k++)
            got += strcmp(list[k].what, line[i].what) == 0 ? list[k].step_bytes : 0;
        if (got != line[i].bytes)
            return FAIL(ST_INTERNAL,
                        "%s: the step received %" PRId64 " bytes, and by the formula it should be "
                        "%" PRId64,
                        line[i].what, got, line[i].bytes);
    }
    for (int k = 0; k < lines; k++) {
        bool known = list[k].step_calls == 0;
        for (int i = 0; i < count && !known; i++)
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
static status check_plan(dry *played, const session *run, const received_line *line, int count)
{
    static const char *const weights[][2] = {{UNITS_GATHER, UNITS_GATHER_VISION},
                                             {UNITS_REDUCE, UNITS_REDUCE_VISION},
                                             {"sum replicas' gradients", NULL}};
    const layout *degrees = &played->layout;
    const rates speeds = rates_h200();
    cost price;
    int64_t got = 0; /* the plan gives the mean over the stages, rounded down, of each kind */
    for (size_t kind = 0; kind < sizeof weights / sizeof *weights; kind++) {
        for (int i = 0; i < count; i++)
            for (int j = 0; j < 2 && weights[kind][j]; j++)
                played->stages_got[kind] +=
                    strcmp(line[i].what, weights[kind][j]) == 0 ? line[i].bytes : 0;
        got += played->stages_got[kind] / degrees->pipeline;
    }
    if (run->mesh.place.pipeline + 1 < degrees->pipeline)
        return ST_OK;
    TRY(cost_of(&played->conf, degrees, &played->dims, played->whole, &speeds, &run->recomputed,
                &price));
    return dry_check(&played->checks, DRY_PLANNED,
                     price.traffic[TRAFFIC_GATHER].bytes + price.traffic[TRAFFIC_REDUCE].bytes +
                         price.traffic[TRAFFIC_REPLICATE].bytes,
                     got);
}

/* The lines of the formula for this rank's step. */
static status lines_of(const dry *played, const session *run, const step_report *step,
                       received_line line[RECEIVED_LINES], int *out_n)
{
    received_work work = step_received_work(run, step);
    received_slots *slots = calloc((size_t)played->dims.text.layers + 1, sizeof *slots);
    if (!slots)
        return FAIL(ST_NO_MEMORY, "no memory for the expert slots of %" PRId64 " layers",
                    played->dims.text.layers);
    even_slots(played, run, &work, slots);
    *out_n = received_lines(run->params, &played->dims, &run->mesh, &work, line);
    free(slots);
    return ST_OK;
}

/* Checks the bytes that a step's collectives have received. */
static status check_calls(dry *played, const session *run, const step_report *step,
                          const comm_ledger *ledger, int rank)
{
    received_line line[RECEIVED_LINES];
    const comm_tally *list;
    const int lines = comm_ledger_list(ledger, &list);
    const int64_t of_stage = played->layout.world / played->layout.pipeline;
    int64_t want = 0, got = 0;
    int count;
    if (rank == 0)
        comm_ledger_print(ledger, stdout);
    if (played->layout.world == 1)
        return ST_OK;
    TRY(lines_of(played, run, step, line, &count));
    TRY(check_lines(line, count, ledger));
    for (int i = 0; i < count; i++)
        want += line[i].bytes;
    for (int i = 0; i < lines; i++)
        got += list[i].step_bytes;
    TRY(dry_check(&played->checks, DRY_RECEIVED, want, got));
    /* The plan is a mean over stages, and a process knows only its own stage. */
    return rank % of_stage == 0 && (!played->world || played->layout.pipeline == 1)
               ? check_plan(played, run, line, count)
               : ST_OK;
}

/* Checks that this rank made the same calls in each group as the group's first rank, which was
 * played before it. */
static status check_order(dry *played, int rank)
{
    const comm_count *mine = &played->counts[rank];
    for (int i = 0; i < mine->count; i++) {
        const comm_counted *first = &mine->group[i],
                           *second = &played->counts[first->first].group[i];
        if (second->first != first->first || second->size != first->size ||
            first->count != second->count || !hash_equal(first->list, second->list))
            return FAIL(ST_INTERNAL,
                        "group %d of %d ranks: rank %d makes %" PRId64 " calls and rank %d %" PRId64
                        "; they differ in number, in kind or in order",
                        i, first->size, rank, first->count, first->first, second->count);
        TRY(dry_check(&played->checks, DRY_ORDER, second->count, first->count));
    }
    return ST_OK;
}

static status write_part(dry *played, const session *run)
{
    const save_ranks ranks = save_ranks_of(run->params, NULL);
    int64_t bytes = 0;
    hf_export_options options = {.source = played->conf.model_path,
                                 .tokenizer = played->conf.model_tokenizer,
                                 .dtype = HF_EXPORT_AS_SOURCE,
                                 .frozen_is_source = base_has_files(&played->conf),
                                 .writer = ranks.writer.rank,
                                 .writers = ranks.writer.ranks,
                                 .value_bytes = &bytes};
    char training[STATUS_PATH_MAX];
    if (!ranks.writes)
        return ST_OK;
    TRY(hf_path(training, played->written, FOLDER_TRAINING));
    TRY(file_make_folders(training));
    TRY(train_state_write(run->params, run->stream, ranks.writer, training));
    if (!checkpoint_writer_whole(&played->conf, run->params))
        return ST_OK;
    TRY(hf_export(run->params, run->stream, &played->dims, played->written, &options));
    return ranks.writer.ranks == 1 /* hf_export counts what one of several writers writes */
               ? ST_OK
               : dry_check(&played->checks, DRY_WRITTEN,
                           dry_bytes_to_write(&played->source, run->params), bytes);
}

/* ---- ranks that are processes: collectives over host values are real on every device ---- */

static const comm *all_ranks(const session *run)
{
    return mesh_comm(&run->mesh, MESH_WORLD);
}

static status gather_owners(dry *run, const session *opened)
{
    const comm *group = all_ranks(opened);
    int64_t bytes;
    char *of = dry_owners_bytes(&run->owners, &bytes);
    return comm_host_all_gather(group, (comm_at){"dry run: who stores what", -1},
                                of + group->rank * bytes, of, bytes);
}

static status gather_checks(dry *run, const session *opened)
{
    const comm *group = all_ranks(opened);
    dry_checks *of = calloc((size_t)group->size, sizeof *of);
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for the tables of %d ranks", group->size);
    status st = comm_host_all_gather(group, (comm_at){"dry run: what was found", -1}, &run->checks,
                                     of, sizeof *of);
    for (int i = 0; i < group->size && st == ST_OK; i++)
        if (i != group->rank)
            dry_checks_add(&run->checks, &of[i]);
    free(of);
    return st;
}

/* ---- playing ---- */

static status play_opened(dry *played, session *run, const comm_ledger *ledger, int rank)
{
    step_report report;
    dry_owners_note(&played->owners, run->params, rank);
    TRY(check_reading(played, run));
    TRY(check_memory(played, run));
    TRY(step_run(run, 1, &report));
    TRY(check_calls(played, run, &report, ledger, rank));
    if (played->counts) /* if ranks are processes, the double of NCCL compares their calls */
        TRY(check_order(played, rank));
    if (played->files)
        TRY(write_part(played, run));
    /* Once they have exchanged this, all ranks have written. */
    return played->world ? gather_owners(played, run) : ST_OK;
}

static status play_in(dry *played, const world *job, int rank, const resume_point *from)
{
    session run;
    TRY(session_connect(&played->conf, job, SESSION_TRAIN, &run));
    TRY(session_load(from, &run));
    status st =
        from ? dry_check(&played->checks, DRY_GOES_ON, dry_state_bytes(&played->source, run.params),
                         run.params->bytes_read)
             : play_opened(played, &run, job->ledger, rank);
    if (st == ST_OK && played->world && (from || !played->files))
        st = gather_checks(played, &run);
    session_close(&run);
    return st;
}

static status play_here(dry *played, int rank, const resume_point *from)
{
    const int size = (int)played->layout.world;
    comm_count again = {0};
    world job = {.place = {rank, size, rank, size, "a dry run"},
                 .engine = &comm_count_engine,
                 .joined = from ? &again : &played->counts[rank]};
    TRY(comm_ledger_new(&job.ledger));
    status st = play_in(played, &job, rank, from);
    comm_ledger_free(&job.ledger);
    return st;
}

status dry_play(dry *run, int rank, const resume_point *from)
{
    status st = run->world ? play_in(run, run->world, rank, from) : play_here(run, rank, from);
    return st == ST_OK ? st : status_context(st, "rank %d", rank);
}
