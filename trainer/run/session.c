/* SPDX-License-Identifier: Apache-2.0 */
/* session.c: opens a session in order, each part from what the parts before it found:
 *
 *   device, mesh        session_device.c; after these the ranks can exchange messages
 *   model, memory plan  session_model.c, session_memory.c; a plan over memory.limit is refused here
 *   values              from a checkpoint, files or the initialiser
 *   stream, shapes      session_stream.c; rows from prepd or a recording, whose WELCOME has row
 *                       length and capacities; planned once more
 *   trial               trial.c: which kernels the ranks use, by trying them in these shapes
 *   step                activations, upload ring, optimiser, capture
 *
 * Whatever fails on the way closes what is open. */
#include "trainer/run/session.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "common/model_folder/model_files.h"
#include "trainer/device/graph_replay.h"
#include "trainer/model/layers/pass_context.h"
#include "trainer/model/params/unit_order.h"
#include "trainer/parallel/layout.h"
#include "trainer/plan/memory.h"
#include "trainer/run/session_parts.h"
#include "trainer/run/session_memory.h"
#include "trainer/run/step.h"

/* Above this share of ln(vocabulary), the loss of a model that guesses, a first loss is suspect. */
static const double NEAR_BLIND = 0.9;

static bool answers_wanted(const session *run)
{
    return generate_wanted(run->conf, run->use == SESSION_TRAIN);
}

/* Takes the shapes of the stream and plans once more, for these. */
static status open_shape(session *run)
{
    TRY(session_shapes(run));
    run->cap.longest = run->cap.frame = 0; /* unlimited: texts grow while answers are generated */
    TRY(session_memory_choose(run));
    return session_memory_check(run);
}

/* Reserves the scratch memory of ops as one block of the planned size. */
static status reserve_workspace(const session *run)
{
    const backend_vtable *backend = run->device->backend;
    memory_plan plan;
    if (!backend->reserve)
        return ST_OK;
    TRY(session_memory_plan(run, &plan));
    return backend->reserve(run->stream, (size_t)plan.gpu.workspace);
}

static status open_generator(session *run)
{
    const generator_options how = {.stream = run->stream,
                                   .dims = &run->dims,
                                   .mesh = &run->mesh,
                                   .model = run->model,
                                   .prompts = run->stager,
                                   .cap = run->cap,
                                   .longest =
                                       run->cap.tokens / run->conf->training_local_batch_size};
    return generate_new(&how, &run->generator);
}

/* With optimizer.in_backward: makes the optimizer update units, and takes over what the checkpoint
 * has of their shares. */
static status update_in_backward(session *run)
{
    const progress *from = run->from ? &run->from->progress : NULL;
    const int64_t n_units = unit_count(&run->dims), known = from ? from->n_units : 0;
    if (known > 0 && known != n_units)
        return FAIL_IN(ST_BAD_INPUT, run->from->path,
                       "its unit_share has %lld numbers, but the model has %lld units",
                       (long long)known, (long long)n_units);
    return optimizer_in_backward(run->optimizer, run->stream, run->sums.loss, run->sums.weight,
                                 n_units, known > 0 ? from->unit_share : NULL);
}

static status open_step(session *run, enum session_use use)
{
    const conf *settings = run->conf;
    const backend_vtable *backend = run->device->backend;
    size_t acc = st_dtype_size(backend->acc);
    TRY(backend->alloc(run->device, sizeof(double), (void **)&run->sums.loss));
    TRY(backend->alloc(run->device, sizeof(double), (void **)&run->sums.weight));
    TRY(backend->alloc(run->device, acc, &run->sums.aux));
    model_options how = {
        .cap = run->cap,
        .mesh = &run->mesh,
        .training = use == SESSION_TRAIN,
        .recomputed = run->recomputed,
        .router_aux_coef = settings->loss_router_aux_coef,
        .exchange = memory_exchange_way(settings, &run->mesh.layout),
    };
    model_options_freeze(&how, run->params);
    TRY(model_new(run->stream, &run->dims, run->params, &how, &run->model));
    upload_ring_options ring = {.cap = run->cap,
                                .buckets = run->buckets.cap,
                                .n_buckets = run->buckets.count,
                                .share = row_share_of(&run->mesh),
                                .in_use = model_flights(run->model),
                                .aux_coefficient = settings->loss_router_aux_coef,
                                .weighting = settings->loss_weighting};
    TRY(upload_ring_new(run->stream, &run->dims, &ring, &run->upload_ring));
    run->stager = upload_ring_stager(run->upload_ring);
    run->got = calloc((size_t)settings->training_local_batch_size, sizeof *run->got);
    run->rows = calloc((size_t)settings->training_local_batch_size, sizeof *run->rows);
    if (!run->got || !run->rows)
        return FAIL(ST_NO_MEMORY, "no memory for the rows of a micro-batch");
    if (answers_wanted(run))
        TRY(open_generator(run));
    if (use != SESSION_TRAIN)
        return ST_OK;
    run->accumulation = settings->training_global_batch_size / settings->training_local_batch_size /
                        layout_consumers(&run->mesh.layout);
    groups_share(run->params, &run->dims, &run->share);
    run->schedule = (schedule){
        .peak = settings->optimizer_lr,
        .steps = settings->training_steps > 0 ? settings->training_steps
                 : run->stream_rows > 0
                     ? run->earlier_steps + run->stream_rows / settings->training_global_batch_size
                     : 0,
        .warmup_steps = settings->lr_scheduler_warmup_steps,
        .decay_ratio = settings->lr_scheduler_decay_ratio,
        .decay_type = settings->lr_scheduler_decay_type,
        .min_factor = settings->lr_scheduler_min_lr_factor,
    };
    TRY(optimizer_new(settings, run->params, run->stream, &run->optimizer));
    if (run->params->in_backward)
        TRY(update_in_backward(run));
    TRY(session_memory_log_host(run));
    TRY(reserve_workspace(run));
    TRY(session_capture(run));
    return step_open(run);
}

status session_check_layout(const conf *settings, int there)
{
    layout degrees;
    TRY(layout_of(settings, NULL, &degrees));
    if (degrees.world != there)
        return FAIL(ST_CONFIG,
                    "parallelism: the layout needs %" PRId64
                    " ranks, a GPU each, but there are %d; the plan above says what it would take. "
                    "Start that many ranks with trainer train --nproc %" PRId64
                    ", torchrun, srun or mpirun; or, for one rank, leave every degree at 1, "
                    "data_parallel_shard_degree at -1 and world_size at 0",
                    degrees.world, there, degrees.world);
    return ST_OK;
}

static status open_mesh(session *run, const world *job)
{
    layout degrees;
    if (!job || job->place.size == 1)
        return ST_OK;
    TRY(layout_of(run->conf, NULL, &degrees));
    return mesh_open(&degrees, job->place.rank, job->engine, job->joined, job->ledger, &run->mesh);
}

/* Opens the device, the mesh of ranks and, to train, the registry. To evaluate it is opened later:
 * whether it has adapters depends on the checkpoint. */
status session_connect(const conf *settings, const world *job, enum session_use use, session *out)
{
    memset(out, 0, sizeof *out);
    out->world = job;
    mesh_alone(&out->mesh);
    out->conf = settings;
    out->use = use;
    status st = ST_OK;
    if (use != SESSION_EVAL || (job && job->place.size > 1)) /* one rank can evaluate any layout */
        TRY(session_check_layout(settings, job ? job->place.size : 1));
    TRY_OR(failed, session_device(out));
    TRY_OR(failed, open_mesh(out, job));
    TRY_OR(failed, session_endpoint(out));
    if (use == SESSION_TRAIN)
        TRY_OR(failed, session_model(out));
    return ST_OK;
failed:
    session_close(out);
    return st;
}

status session_load(const resume_point *from, session *inout)
{
    const conf *settings = inout->conf;
    const enum session_use use = inout->use;
    status st = ST_OK;
    inout->from = from;
    memory_plan widest;
    if (use == SESSION_EVAL)
        TRY_OR(failed, session_model(inout));
    TRY_OR(failed, session_memory_plan(inout, &widest));
    inout->planned_by_options = widest.total;
    const char *folder;
    if (model_files_folder(settings, &folder) == ST_OK)
        TRY_OR(failed, tokenizer_load(folder, &inout->tokenizer));
    if (!settings->feed_replay[0]) /* a recording has its own row length, which open_shape checks */
        TRY_OR(failed, session_memory_check(inout));
    TRY_OR(failed, session_values(inout));
    if (use == SESSION_TRAIN)
        TRY_OR(failed, session_train_stream(inout));
    TRY_OR(failed, open_shape(inout));
    TRY_OR(failed, trial_run(inout)); /* while the memory of activations is still free */
    inout->planned.cudnn &= choices_have_cudnn(&inout->device->choices);
    TRY_OR(failed, open_step(inout, use));
    return ST_OK;
failed:
    session_close(inout);
    return st;
}

status session_open(const conf *settings, const world *job, enum session_use use, session *out)
{
    TRY(session_connect(settings, job, use, out));
    return session_load(NULL, out);
}

status session_open_bench(const conf *settings, const world *job, bool any_stream, session *out)
{
    TRY(session_connect(settings, job, SESSION_TRAIN, out));
    out->any_stream = any_stream;
    out->for_bench = true;
    return session_load(NULL, out);
}

void session_close(session *run)
{
    receiver_close(&run->train);
    if (run->stream) {
        const backend_vtable *backend = run->device->backend;
        step_close(run);
        graph_replay_free(run->stream);
        optimizer_free(&run->optimizer, run->stream);
        generate_free(&run->generator);
        upload_ring_free(&run->upload_ring);
        model_free(&run->model, run->stream);
        if (run->params)
            params_release(run->params, run->stream);
        backend->release(run->device, run->sums.loss);
        backend->release(run->device, run->sums.weight);
        backend->release(run->device, run->sums.aux);
        backend->stream_free(&run->stream);
    }
    free(run->got);
    free(run->rows);
    free(run->endpoint);
    free(run->stream_options);
    free(run->recording);
    params_free(&run->params);
    base_done(&run->base);
    tokenizer_free(&run->tokenizer);
    mesh_close(&run->mesh);
    if (run->device)
        world_detach(run->world);
    device_close(&run->device);
    memset(run, 0, sizeof *run);
}

void session_check_first_loss(const session *run, double loss)
{
    double blind = log((double)run->dims.text.vocab);
    if (!isfinite(loss))
        log_warn("the first loss is not a finite number: do the weights of %s contain values that "
                 "are not finite?",
                 run->conf->model_path);
    else if (run->from_weights && !(loss <= NEAR_BLIND * blind))
        log_warn("the first loss %.3f is near ln(vocabulary) = %.3f, the loss of guessing, though "
                 "%s has weights: they may be untrained, or stored in another layout than the one "
                 "they were read in",
                 loss, blind, run->conf->model_path);
}
