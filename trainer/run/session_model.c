/* SPDX-License-Identifier: Apache-2.0 */
/* session_model.c: reads the model's dimensions, makes its registry,
 * and gives parameters values. */
#include "trainer/run/session_parts.h"

#include <inttypes.h>

#include "common/base/file.h"
#include "common/program/log.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/model/dims/hf_folder.h"
#include "trainer/checkpoint/hf/hf_load.h"
#include "trainer/checkpoint/state/train_state.h"
#include "trainer/parallel/layout.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/run/session_memory.h"

/* Cuts the model to its first model.layers layers, for benches. As many layers must stay as there
 * are deepstack features, since each is added to the output of its own layer. */
static status cut_layers(const conf *options, model_dims *dims)
{
    if (options->model_layers == 0)
        return ST_OK;
    if (options->model_layers > dims->text.layers ||
        options->model_layers < dims->vision.n_deepstack)
        return FAIL(ST_CONFIG,
                    "model.layers is %" PRId64 ", but %s can only be cut to %d to %" PRId64
                    " layers",
                    options->model_layers, dims->name, dims->vision.n_deepstack, dims->text.layers);
    dims->text.layers = options->model_layers;
    return ST_OK;
}

status session_dims(const conf *options, model_dims *out)
{
    if (!options->model_path[0])
        return FAIL_IN(ST_CONFIG, conf_place(options),
                       "model.path is not set: name a Hugging Face folder or a preset");
    TRY(dims_load(options->model_path, out));
    return cut_layers(options, out);
}

status session_model(session *run)
{
    const conf *options = run->conf;
    TRY(session_dims(options, &run->dims));
    TRY(params_new(&run->dims, &run->params));
    if (session_has_parts(run)) /* first: adapters must be cut along with their matrices */
        TRY(groups_apply(options, run->params));
    TRY(session_memory_device(run));
    TRY(session_memory_choose(run));
    if (run->mesh.layout.world == 1)
        return ST_OK;
    TRY(stage_plan(options, &run->dims, run->params, &run->mesh.layout));
    TRY(params_cut(run->params, &run->dims, &run->mesh.layout, run->mesh.place));
    params_share(run->params, &run->mesh,
                 options->parallelism_fsdp_reshard_after_forward != RESHARD_NEVER);
    return ST_OK;
}

/* Adapters are only useful beside a base model that other people have too, so LoRA on random values
 * is refused unless lora.random_base allows it. */
static status want_base(const session *run, bool have)
{
    if (have || run->from || run->for_bench || run->params->lora_rank == 0 ||
        run->conf->lora_random_base)
        return ST_OK;
    return FAIL_IN(ST_NO_INPUT, run->conf->model_path,
                   "lora.rank is %" PRId64
                   ", but %s, so adapters would be trained beside random values. "
                   "Name a folder with model.safetensors or model.safetensors.index.json, or set "
                   "lora.random_base to true if that is what you want",
                   run->params->lora_rank,
                   run->conf->model_layers ? "model.layers leaves layers of the model out"
                                           : "there are no weights here");
}

/* Draws first values from training.seed. */
static status draw_values(const session *run)
{
    const uint64_t seed = (uint64_t)run->conf->training_seed;
    if (run->for_bench)
        return params_init_repeating(run->params, run->stream, seed, PARAMS_BENCH_PERIOD);
    return params_init(run->params, run->stream, seed);
}

status session_base(session *run)
{
    const conf *options = run->conf;
    run_base *base = &run->base;
    const bool have = base_has_files(options);
    if (base->model[0])
        return ST_OK;
    *base = (run_base){.drawn = !have, .seed = options->training_seed};
    if (base_wanted(run->params))
        TRY(base_find(run->params, have ? options->model_path : NULL, options->training_seed,
                      mesh_comm(&run->mesh, MESH_WORLD), base));
    snprintf(base->model, sizeof base->model, "%s", options->model_path);
    if (options->lora_rank == 0)
        return ST_OK;
    base->form = run->params->base_form;
    return base_note_lora(base, groups_lora(options), options->lora_targets);
}

static status load_frozen(const session *run, bool have)
{
    return have ? hf_load_frozen(run->params, run->stream, run->conf->model_path)
                : draw_values(run);
}

/* Gives frozen parameters the values of the base, and checks that it is the one that the checkpoint
 * belongs to. A checkpoint of a run that froze nothing does not name one
 * (`may_lack`); it has all values. */
static status load_base(session *run, bool have, bool may_lack, const char *training)
{
    run_base then = {0};
    bool there;
    if (!base_wanted(run->params))
        return ST_OK;
    TRY(load_frozen(run, have));
    TRY(base_read(training, &then, &there));
    if (!there && !may_lack)
        return FAIL_IN(ST_NO_INPUT, training,
                       "there is no base.json, so the base of the copy in memory is not "
                       "known; begin anew with checkpoint.load_step 0");
    status st = there ? session_base(run) : ST_OK;
    if (st == ST_OK && there)
        st = base_check(&run->base, &then, run->params->convert_states, run->from->path);
    base_done(&then);
    return st;
}

static void log_kept(const params *registry)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < registry->count; i++)
        kept += registry->list[i].kept;
    if (kept)
        log_info("%" PRId64 " frozen tensors have other values in the checkpoint than in "
                 "model.path, and stay in the checkpoints of this run",
                 kept);
}

/* A checkpoint may have frozen values itself. They may differ from those of
 * model.path, which a base in fewer bits is made of. */
static status refuse_own_base(const session *run, const char *training)
{
    bool has_frozen;
    if (run->params->base_form == WEIGHT_PLAIN)
        return ST_OK;
    TRY(train_state_has_frozen(run->params, training, &has_frozen));
    return has_frozen ? FAIL_IN(ST_CONFIG, training,
                                "this checkpoint has frozen values itself, and a base of "
                                "lora.base int8 or nf4 is made of model.path alone; go on with "
                                "lora.base bf16")
                      : ST_OK;
}

static status load_checkpoint(session *run, bool have, const char *path)
{
    char training[STATUS_PATH_MAX + sizeof "/" FOLDER_TRAINING];
    snprintf(training, sizeof training, "%s/%s", path, FOLDER_TRAINING);
    TRY(refuse_own_base(run, training));
    TRY(load_base(run, have, true, training));
    return train_state_load(run->params, run->stream, training);
}

/* A copy in memory has no frozen values, which are loaded first. */
static status load_copy(session *run, bool have)
{
    const resume_point *from = run->from;
    if (from->base[0])
        TRY(load_checkpoint(run, have, from->base));
    else
        TRY(load_base(run, have, false, from->folder));
    return snapshot_load(from->copy, run->params);
}

/* Gives the parameters the values of a checkpoint, or of a copy in memory. */
static status load_resumed(session *run, bool have)
{
    const resume_point *from = run->from;
    status st = from->copy ? load_copy(run, have) : load_checkpoint(run, have, from->path);
    if (st == ST_BAD_INPUT) /* its bytes were verified, so it must be of another model */
        return status_context(st,
                              "the run kept here trains another model or other parts of it "
                              "(model.path, freeze, lora): give the same options as before, or %s "
                              "with checkpoint.load_step 0",
                              run->use == SESSION_EVAL
                                  ? "evaluate model.path alone"
                                  : "choose another job.dump_folder, or begin anew");
    TRY(st);
    log_kept(run->params);
    run->from_weights = true;
    log_info("resuming from step %" PRId64 " of %s%s bytes=%" PRId64, from->progress.step,
             from->copy ? "the copy in memory " : "", from->path, run->params->bytes_read);
    return ST_OK;
}

status session_values(session *run)
{
    const conf *options = run->conf;
    const enum session_use use = run->use;
    const bool have = base_has_files(options);
    TRY(want_base(run, have));
    TRY(params_alloc(run->params, run->stream, use == SESSION_TRAIN));
    if (run->from)
        return load_resumed(run, have);
    if (have) {
        TRY(hf_load(run->params, run->stream, options->model_path));
        TRY(params_init_adapters(run->params, run->stream, (uint64_t)options->training_seed));
        TRY(lora_set_lengths(run->params, run->stream));
        run->from_weights = true;
    } else if (use == SESSION_EVAL) {
        return FAIL_IN(ST_NO_INPUT, options->model_path,
                       "there is no model.safetensors or model.safetensors.index.json here, so "
                       "there is nothing to evaluate; a finished run leaves its model in "
                       "job.dump_folder/checkpoint");
    } else {
        TRY(draw_values(run));
        TRY(lora_set_lengths(run->params, run->stream));
    }
    log_info("the model is %s%s name=%s parameters=%" PRId64 " tensors=%" PRId64 " bytes=%" PRId64,
             have                                  ? "loaded from its weights"
             : file_is_folder(options->model_path) ? "new, with the dimensions of its "
                                                     "config.json, initialised from training.seed"
                                                   : "a preset, initialised from training.seed",
             run->for_bench && !have ? " with values that repeat" : "", run->dims.name,
             run->params->total, run->params->count, run->params->bytes_read);
    return ST_OK;
}
