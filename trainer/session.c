#include "trainer/session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/log.h"
#include "common/model_files.h"
#include "trainer/checkpoint/hf_folder.h"
#include "trainer/checkpoint/hf_load.h"

static status open_model(session *s)
{
    const conf *c = s->conf;
    TRY(device_open(c->training_backend, 0, (int)c->training_threads, &s->device));
    log_info("device %s", s->device->description);
    TRY(s->device->v->stream_new(s->device, &s->stream));
    if (!c->model_path[0])
        return FAIL(ST_CONFIG, "model.path is not set: name a Hugging Face folder or a preset");
    TRY(dims_load(c->model_path, &s->dims));
    return params_new(&s->dims, &s->params);
}

static status load_values(session *s, enum session_use use)
{
    const conf *c = s->conf;
    TRY(params_alloc(s->params, s->stream, use == SESSION_TRAIN));
    bool have = model_files_is_folder(c->model_path) && hf_has_weights(c->model_path);
    if (have) {
        TRY(hf_load(s->params, s->stream, &s->dims, c->model_path));
        s->from_weights = true;
    } else if (use == SESSION_EVAL) {
        return FAIL_IN(ST_NO_INPUT, c->model_path,
                       "no model.safetensors or model.safetensors.index.json here: nothing to "
                       "evaluate (a finished run leaves one in job.dump_folder)");
    } else {
        TRY(params_init(s->params, s->stream, (uint64_t)c->training_seed));
    }
    log_info("model %s parameters=%" PRId64 " tensors=%" PRId64 " %s", s->dims.name,
             s->params->total, s->params->n,
             have ? "loaded from its weights" : "initialised from training.seed");
    return ST_OK;
}

static void client_settings(const session *s, const char *stream_name, const char *options,
                            receiver_options *o)
{
    const conf *c = s->conf;
    o->client = (client_options){
        .endpoint = c->prepd_endpoint,
        .stream = stream_name,
        .stream_options = options,
        .ranks = 1,
        .credit_bytes = c->prepd_ahead_bytes,
        .timeout_ms = (int)(c->feed_timeout * 1000.0),
    };
    o->replay_loops = 0;
    /* Double-buffer whole micro-batches. */
    o->slots = c->feed_ahead;
    if (o->slots < 2 * c->training_local_batch_size)
        o->slots = 2 * c->training_local_batch_size;
}

status session_stream(const session *s, const char *stream_name, const conf *c, receiver **out)
{
    receiver_options o = {0};
    if (c->feed_replay[0]) {
        client_settings(s, stream_name, NULL, &o);
        o.replay = c->feed_replay;
        return receiver_open(&o, out);
    }
    hash128 model_digest;
    char *options = NULL;
    TRY(model_files_digest(c, &model_digest));
    TRY(conf_stream_json(c, model_digest, &options));
    client_settings(s, stream_name, options, &o);
    log_info("connecting to %s for the %s stream", c->prepd_endpoint, stream_name);
    status st = receiver_open(&o, out);
    free(options);
    return st;
}

/* Row capacities come from WELCOME: the daemon's plan knows them. */
static status caps_from_welcome(session *s, receiver *r)
{
    json_value *welcome = NULL;
    const char *text = receiver_welcome(r);
    TRY(json_parse(text, strlen(text), "WELCOME", &welcome));
    int64_t seq_len = 0, patches = 0, rows = s->conf->training_local_batch_size;
    status st = json_want_int(welcome, "seq_len", "WELCOME", &seq_len);
    if (st == ST_OK)
        st = json_want_int(welcome, "patch_budget", "WELCOME", &patches);
    json_free(&welcome);
    TRY(st);
    if (seq_len <= 0 || seq_len > INT32_MAX / 8 || patches < 0 || patches > INT32_MAX / 8)
        return FAIL(ST_PROTOCOL,
                    "WELCOME offers rows of %" PRId64 " tokens and %" PRId64 " patches", seq_len,
                    patches);
    patches = (patches + 3) / 4 * 4;
    batch_caps *cap = &s->cap;
    cap->tokens = rows * seq_len;
    cap->patches = rows * patches;
    /* The chat template alone takes more than four tokens of a document; an item or frame has at
     * least four patches. */
    cap->docs = cap->tokens / 4 + rows;
    cap->items = cap->patches / 4;
    cap->frames = cap->patches / 4;
    cap->targets = cap->tokens;
    return ST_OK;
}

static status open_step(session *s, enum session_use use)
{
    const conf *c = s->conf;
    const backend_vtable *v = s->device->v;
    size_t acc = st_dtype_size(v->acc);
    TRY(v->alloc(s->device, sizeof(double), (void **)&s->sums.loss));
    TRY(v->alloc(s->device, sizeof(double), (void **)&s->sums.weight));
    TRY(v->alloc(s->device, acc, &s->sums.aux));
    model_options o = {
        .cap = s->cap,
        .training = use == SESSION_TRAIN,
        .checkpoint_full = c->ac_mode == AC_FULL,
        .router_aux_coef = c->loss_router_aux,
    };
    TRY(model_new(s->stream, &s->dims, s->params, &o, &s->model));
    TRY(stager_new(s->stream, &s->dims, &s->cap, &s->stager));
    s->got = calloc((size_t)c->training_local_batch_size, sizeof *s->got);
    s->rows = calloc((size_t)c->training_local_batch_size, sizeof *s->rows);
    if (!s->got || !s->rows)
        return FAIL(ST_NO_MEMORY, "session: out of memory");
    if (use != SESSION_TRAIN)
        return ST_OK;
    int64_t per_micro = c->training_local_batch_size;
    if (c->training_global_batch_size % per_micro != 0)
        return FAIL(ST_CONFIG,
                    "training.global_batch_size %" PRId64
                    " is no multiple of training.local_batch_size %" PRId64,
                    c->training_global_batch_size, per_micro);
    s->accumulation = c->training_global_batch_size / per_micro;
    s->schedule = (schedule){
        .peak = c->optimizer_lr,
        .steps = c->training_steps,
        .warmup_steps = c->lr_warmup_steps,
        .decay_ratio = c->lr_decay_ratio,
        .decay_type = c->lr_decay_type,
        .min_factor = c->lr_min_factor,
    };
    return optimizer_new(c, s->params, s->stream, &s->optimizer);
}

/* One rank for now: a layout of several is refused before anything is opened. */
static status check_layout(const conf *c)
{
    int64_t degrees[] = {c->dp_replicate,        c->dp_shard,        c->tensor_degree,
                         c->context_degree,      c->pipeline_degree, c->expert_degree,
                         c->expert_tensor_degree};
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++)
        if (degrees[i] > 1)
            return FAIL(ST_CONFIG,
                        "parallelism: the layout needs more than one rank and this trainer runs "
                        "one; leave every degree at 1 (data_parallel_shard_degree -1)");
    return ST_OK;
}

status session_open(const conf *c, enum session_use use, session *out)
{
    memset(out, 0, sizeof *out);
    out->conf = c;
    status st = ST_OK;
    TRY(check_layout(c));
    TRY_OR(failed, open_model(out));
    const char *folder;
    if (model_files_folder(c, &folder) == ST_OK)
        TRY_OR(failed, tokenizer_load(folder, &out->tokenizer));
    TRY_OR(failed, load_values(out, use));
    if (use == SESSION_TRAIN) {
        TRY_OR(failed, session_stream(out, "train", c, &out->train));
        TRY_OR(failed, caps_from_welcome(out, out->train));
    } else {
        receiver *held = NULL;
        TRY_OR(failed, session_stream(out, "eval", c, &held));
        st = caps_from_welcome(out, held);
        receiver_close(&held);
        if (st != ST_OK)
            goto failed;
    }
    TRY_OR(failed, open_step(out, use));
    return ST_OK;
failed:
    session_close(out);
    return st;
}

void session_close(session *s)
{
    receiver_close(&s->train);
    if (s->stream) {
        const backend_vtable *v = s->device->v;
        optimizer_free(&s->optimizer, s->stream);
        stager_free(&s->stager, s->stream);
        model_free(&s->model, s->stream);
        if (s->params)
            params_release(s->params, s->stream);
        v->release(s->device, s->sums.loss);
        v->release(s->device, s->sums.weight);
        v->release(s->device, s->sums.aux);
        v->stream_free(&s->stream);
    }
    free(s->got);
    free(s->rows);
    params_free(&s->params);
    tokenizer_free(&s->tokenizer);
    device_close(&s->device);
    memset(s, 0, sizeof *s);
}

status session_print_memory(const session *s, FILE *to)
{
    const backend_vtable *v = s->device->v;
    int64_t value = 0, gradient = 0, moments = 0, activations = 0;
    int64_t acc = (int64_t)st_dtype_size(v->acc), act = (int64_t)st_dtype_size(v->act);
    value = s->params->total * (acc + (act == acc ? 0 : act));
    if (s->optimizer) {
        gradient = s->params->total * acc;
        moments = 2 * s->params->total * acc;
    }
    model_options o = {.cap = s->cap,
                       .training = s->optimizer != NULL,
                       .checkpoint_full = s->conf->ac_mode == AC_FULL,
                       .router_aux_coef = s->conf->loss_router_aux};
    TRY(model_bytes(&s->dims, &o, v, &activations));
    const struct {
        const char *name;
        int64_t bytes;
    } regions[] = {{"parameters", value},
                   {"gradients", gradient},
                   {"moments", moments},
                   {"activations and scratch", activations}};
    for (size_t i = 0; i < sizeof regions / sizeof *regions; i++)
        fprintf(to, "memory: %-24s %12.1f MiB\n", regions[i].name,
                (double)regions[i].bytes / 1048576.0);
    return ST_OK;
}
