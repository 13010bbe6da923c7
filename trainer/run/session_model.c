/* session_model.c: reads the model's dimensions, makes its registry, and gives parameters values.
 */
#include "trainer/run/session_model.h"

#include <inttypes.h>

#include "common/base/file.h"
#include "common/program/log.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/model/hf_folder.h"
#include "trainer/checkpoint/hf_load.h"
#include "trainer/checkpoint/train_state.h"
#include "trainer/parallel/layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/run/session_memory.h"

/* Cuts the model to its first model.layers layers, for benches. As many layers must stay as there
 * are deepstack features, since each is added to the output of a layer of its own. */
static status cut_layers(const conf *c, model_dims *d)
{
    if (c->model_layers == 0)
        return ST_OK;
    if (c->model_layers > d->text.layers || c->model_layers < d->vision.n_deepstack)
        return FAIL(ST_CONFIG,
                    "model.layers is %" PRId64 ", but %s can only be cut to %d to %" PRId64
                    " layers",
                    c->model_layers, d->name, d->vision.n_deepstack, d->text.layers);
    d->text.layers = c->model_layers;
    return ST_OK;
}

status session_dims(const conf *c, model_dims *out)
{
    if (!c->model_path[0])
        return FAIL_IN(ST_CONFIG, conf_place(c),
                       "model.path is not set: name a Hugging Face folder or a preset");
    TRY(dims_load(c->model_path, out));
    return cut_layers(c, out);
}

status session_model(session *s)
{
    const conf *c = s->conf;
    TRY(session_dims(c, &s->dims));
    TRY(params_new(&s->dims, &s->params));
    if (s->use == SESSION_TRAIN) /* first: adapters must be cut along with their matrices */
        TRY(groups_apply(c, s->params));
    TRY(session_memory_device(s));
    TRY(session_memory_choose(s));
    if (s->mesh.layout.world == 1)
        return ST_OK;
    TRY(stage_plan(c, &s->dims, s->params, &s->mesh.layout));
    TRY(params_cut(s->params, &s->dims, &s->mesh.layout, s->mesh.place));
    params_share(s->params, &s->mesh, c->parallelism_fsdp_reshard_after_forward != RESHARD_NEVER);
    return ST_OK;
}

/* Adapters are only useful beside a base model that other people have too, so LoRA on random values
 * is refused unless lora.random_base allows it. */
static status want_base(const session *s, bool have)
{
    if (have || s->from || s->params->lora_rank == 0 || s->conf->lora_random_base)
        return ST_OK;
    return FAIL_IN(ST_NO_INPUT, s->conf->model_path,
                   "lora.rank is %" PRId64
                   ", but %s, so adapters would be trained beside random values. "
                   "Name a folder with model.safetensors or model.safetensors.index.json, or set "
                   "lora.random_base to true if that is what you want",
                   s->params->lora_rank,
                   s->conf->model_layers ? "model.layers leaves layers of the model out"
                                         : "there are no weights here");
}

status session_values(session *s)
{
    const conf *c = s->conf;
    const enum session_use use = s->use;
    const bool have =
        c->model_layers == 0 && file_is_folder(c->model_path) && hf_has_weights(c->model_path);
    TRY(want_base(s, have));
    TRY(params_alloc(s->params, s->stream, use == SESSION_TRAIN));
    if (s->from) {
        char training[STATUS_PATH_MAX + sizeof "/" FOLDER_TRAINING];
        snprintf(training, sizeof training, "%s/%s", s->from->path, FOLDER_TRAINING);
        status st = train_state_load(s->params, s->stream, training);
        if (st == ST_BAD_INPUT) /* its bytes were verified, so it must be of another model */
            return status_context(st,
                                  "the run kept here trains another model or other parts of it "
                                  "(model.path, freeze, lora): give the same options as before, or "
                                  "choose another job.dump_folder, or begin anew with "
                                  "checkpoint.load_step 0");
        TRY(st);
        s->from_weights = true;
        log_info("going on from step %" PRId64 " of %s bytes=%" PRId64, s->from->progress.step,
                 s->from->path, s->params->bytes_read);
        return ST_OK;
    }
    if (have) {
        TRY(hf_load(s->params, s->stream, c->model_path));
        TRY(params_init_adapters(s->params, s->stream, (uint64_t)c->training_seed));
        s->from_weights = true;
    } else if (use == SESSION_EVAL) {
        return FAIL_IN(ST_NO_INPUT, c->model_path,
                       "there is no model.safetensors or model.safetensors.index.json here, so "
                       "there is nothing to evaluate; a finished run leaves its model in "
                       "job.dump_folder/checkpoint");
    } else {
        TRY(params_init(s->params, s->stream, (uint64_t)c->training_seed));
    }
    log_info("model %s parameters=%" PRId64 " tensors=%" PRId64 " %s bytes=%" PRId64, s->dims.name,
             s->params->total, s->params->count,
             have ? "loaded from its weights" : "initialised from training.seed",
             s->params->bytes_read);
    return ST_OK;
}
