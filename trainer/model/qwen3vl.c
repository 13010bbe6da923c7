/* SPDX-License-Identifier: Apache-2.0 */
/* qwen3vl.c: puts the parts of the model together and lays out their memory.
 *
 *   pixels --vision--> features --+
 *   tokens --------------------decoder--> x[L] --head--> loss
 *
 * One device block holds all activations: first what is kept from forward to backward, once for
 * each micro-batch under way, then the scratch of vision, decoder and head. These three never run
 * at the same time, so their scratch shares memory. */
#include "trainer/model/qwen3vl.h"

#include <stdlib.h>

#include "trainer/model/text/decoder.h"
#include "trainer/model/text/kv_cache.h"
#include "trainer/model/vision/vision.h"

/* The activations of one micro-batch between its forward and its backward. */
typedef struct flight {
    vision vision;
    decoder decoder;
} flight;

struct model {
    model_dims dims;
    model_options options;
    params *registry;
    mesh alone;     /* a mesh of one rank, used if none is given */
    batch_caps cap; /* largest micro-batch of this rank */
    stage_part part;
    bool has_vision;
    int n_flights;
    flight *flight;         /* [n_flights] */
    pipeline_exchange done; /* the last pass, until its results are handed over */
    head head;
    void *block; /* device memory of all activations */
    exchange_window window;
    const void *router_bias;
};

static const mesh *mesh_of(const model *net)
{
    return net->options.mesh ? net->options.mesh : &net->alone;
}

int64_t model_logit_rows(const model_options *options)
{
    int64_t rows = options->logit_rows > 0 ? options->logit_rows : LOGIT_ROWS_DEFAULT;
    return rows < options->cap.targets || options->cap.targets == 0 ? rows : options->cap.targets;
}

static void parts_done(model *net)
{
    for (int i = 0; i < net->n_flights; i++) {
        vision_done(&net->flight[i].vision);
        decoder_done(&net->flight[i].decoder);
    }
    free(net->flight);
}

/* Sets whether token copies are exchanged on the device, and through which window. */
static void set_exchange(model *net, bool on_device, const exchange_window *window)
{
    for (int i = 0; i < net->n_flights; i++) {
        exchange *state = &net->flight[i].decoder.moe_scratch.exchange;
        state->on_device = on_device && state->rows > 0;
        state->window = window;
    }
}

static const exchange *exchange_of(const model *net)
{
    return &net->flight[0].decoder.moe_scratch.exchange;
}

int model_flights_of(const model_options *options)
{
    if (!options->mesh || !options->training)
        return 1;
    const layout *degrees = &options->mesh->layout;
    return (int)stage_flights(options->mesh->place.pipeline, (int)degrees->pipeline,
                              degrees->accumulation);
}

static status parts_init(model *net, const model_dims *dims, const model_options *options)
{
    *net = (model){.dims = *dims, .options = *options};
    mesh_alone(&net->alone);
    row_share share = row_share_of(mesh_of(net));
    net->cap = batch_caps_shared(&options->cap, &share);
    net->part = stage_part_of(dims, &mesh_of(net)->layout, mesh_of(net)->place.pipeline);
    net->has_vision = dims->vision.depth > 0 && net->part.opens;
    net->head = (head){.hidden = dims->text.hidden,
                       .vocab = dims->text.vocab,
                       .eps = dims->text.rms_eps,
                       .rows = model_logit_rows(options)};
    const int count = model_flights_of(options);
    net->flight = calloc((size_t)count, sizeof *net->flight);
    if (!net->flight)
        return FAIL(ST_NO_MEMORY, "no memory for %d micro-batches under way", count);
    status st = ST_OK;
    while (net->n_flights < count && st == ST_OK) {
        flight *sent = &net->flight[net->n_flights++];
        st = decoder_init(&sent->decoder, &net->dims, &mesh_of(net)->layout, &net->part,
                          net->cap.tokens);
        if (st == ST_OK && net->has_vision)
            st = vision_init(&sent->vision, &net->dims);
    }
    set_exchange(net, options->exchange != EXCHANGE_BY_HOST, NULL);
    if (st != ST_OK)
        parts_done(net);
    return st;
}

/* Returns the bytes taken since mark and rewinds to it, so that the next part of the model gets the
 * same memory. *inout_peak grows to the end of the longest part. */
static int64_t scratch(space *sp, size_t mark, size_t *inout_peak)
{
    size_t top = sp->peak;
    space_rewind(sp, mark);
    sp->peak = mark;
    if (top > *inout_peak)
        *inout_peak = top;
    return (int64_t)(top - mark);
}

static shape shape_of(const model *net, const backend_vtable *backend)
{
    const layout *ranks = &mesh_of(net)->layout;
    return (shape){.dims = &net->dims,
                   .cap = net->cap,
                   .act = st_dtype_size(backend->act),
                   .acc = st_dtype_size(backend->acc),
                   .ranks = ranks,
                   .context_tokens = net->cap.tokens * ranks->tensor,
                   .all_tokens = net->cap.tokens * ranks->tensor * ranks->context};
}

static void lay_out(model *net, space *sp, const backend_vtable *backend, model_regions *out)
{
    const model_options *options = &net->options;
    shape sizes = shape_of(net, backend);
    bool vision_trains = options->training && !options->vision_frozen;
    vision_modes vision_mode = {.training = vision_trains,
                                .recomputed = options->recomputed.vision,
                                .frozen = options->tower_frozen};
    decoder_modes text_mode = {.training = options->training,
                               .recomputed = options->recomputed.text,
                               .aux = options->router_aux_coef > 0,
                               .lora = {.rank = options->lora_rank,
                                        .experts = options->lora_experts,
                                        .dora = options->lora_dora}};
    *out = (model_regions){0};
    for (int i = 0; i < net->n_flights; i++) {
        size_t begin = space_mark(sp);
        if (net->has_vision)
            vision_layout(&net->flight[i].vision, sp, &sizes, vision_mode);
        size_t seen = space_mark(sp);
        decoder_layout(&net->flight[i].decoder, sp, &sizes, text_mode);
        out->vision_kept += (int64_t)(seen - begin);
        out->text_kept += (int64_t)(space_mark(sp) - seen);
    }
    size_t mark = space_mark(sp), peak = mark;
    for (int i = 0; i < net->n_flights && net->has_vision; i++) {
        space_rewind(sp, mark);
        vision_layout_scratch(&net->flight[i].vision, sp, &sizes, vision_mode);
    }
    out->vision_scratch = scratch(sp, mark, &peak);
    for (int i = 0; i < net->n_flights; i++) {
        space_rewind(sp, mark);
        decoder_layout_scratch(&net->flight[i].decoder, sp, &sizes, text_mode);
    }
    out->text_scratch = scratch(sp, mark, &peak);
    if (net->part.closes)
        head_layout(&net->head, sp, net->cap.targets, sizes.act, sizes.acc, options->training);
    out->head_scratch = scratch(sp, mark, &peak);
    if (exchange_of(net)->on_device)
        out->window =
            exchange_window_bytes(&net->dims.text, sizes.ranks, exchange_of(net)->slots, sizes.act);
    out->total = (int64_t)peak + out->window;
}

status model_regions_of(const model_dims *dims, const model_options *options,
                        const backend_vtable *backend, model_regions *out)
{
    model net;
    TRY(parts_init(&net, dims, options));
    space sp = {0};
    lay_out(&net, &sp, backend, out);
    parts_done(&net);
    return ST_OK;
}

status model_kinds_bytes(const model_dims *dims, const model_options *options,
                         const backend_vtable *backend, unsigned kinds, int64_t *out_layer,
                         int64_t *out_block)
{
    model net;
    vision_saved block;
    space sp = {0};
    TRY(parts_init(&net, dims, options));
    const shape sizes = shape_of(&net, backend);
    *out_layer = decoder_kinds_bytes(&net.flight[0].decoder, &sizes, dims->text.layers - 1, kinds);
    if (net.has_vision)
        vision_saved_layout(&block, &sp, &sizes, kinds);
    *out_block = (int64_t)sp.used;
    parts_done(&net);
    return ST_OK;
}

void model_options_freeze(model_options *options, const params *registry)
{
    const param *table = params_find(registry, "model.visual.pos_embed.weight");
    options->tower_frozen = !params_trains(registry, GROUP_VISION) && (!table || table->frozen);
    options->vision_frozen = options->tower_frozen && !params_trains(registry, GROUP_MERGER);
    options->lora_rank = registry->lora_rank;
    options->lora_experts = registry->lora_experts;
    options->lora_dora = registry->lora_dora;
}

static void bind_parts(model *net, params *registry)
{
    net->registry = registry;
    for (int i = 0; i < net->n_flights; i++) {
        decoder_bind(&net->flight[i].decoder, registry, &net->dims);
        if (net->has_vision)
            vision_bind(&net->flight[i].vision, registry, &net->dims);
    }
}

/* Takes the addresses of the head's weights; in a tied model they are those of the embedding. */
static void bind_head(model *net)
{
    param *norm = params_get(net->registry, "%snorm.weight", net->registry->text_prefix);
    param *weight = net->dims.text.tied ? params_get(net->registry, "%sembed_tokens.weight",
                                                     net->registry->text_prefix)
                                        : params_get(net->registry, "lm_head.weight");
    net->head.norm = norm->act;
    net->head.dnorm = param_gradient(norm);
    net->head.weight = weight->act;
    net->head.dweight = weight->grad;
}

static status open_exchange(model *net, stream *queue)
{
    const exchange *state = exchange_of(net);
    const bool must = net->options.exchange == EXCHANGE_BY_DEVICE;
    bool open;
    if (!state->on_device)
        return ST_OK;
    TRY(exchange_window_open(queue, mesh_of(net), &net->dims.text, state->slots, must, &net->window,
                             &open));
    set_exchange(net, open, &net->window);
    return ST_OK;
}

const exchange_window *model_exchange(const model *net)
{
    return exchange_of(net)->on_device ? &net->window : NULL;
}

status model_new(stream *queue, const model_dims *dims, params *registry,
                 const model_options *options, model **out)
{
    model *net = malloc(sizeof *net);
    if (!net)
        return FAIL(ST_NO_MEMORY, "no memory for a model");
    model_options own = *options;
    own.mesh = options->mesh ? options->mesh : registry->mesh;
    status st = parts_init(net, dims, &own);
    if (st != ST_OK) {
        free(net);
        return st;
    }
    bind_parts(net, registry);
    const flight *sent = &net->flight[0];
    if (options->training &&
        ((options->vision_frozen && sent->decoder.features_wanted) ||
         (options->tower_frozen && net->has_vision && sent->vision.lowest < dims->vision.depth))) {
        model_free(&net, queue);
        return FAIL(ST_INTERNAL,
                    "the options freeze the vision tower, but the registry trains a part of it");
    }
    st = open_exchange(net, queue);
    if (st != ST_OK) {
        model_free(&net, queue);
        return st;
    }
    space sp = {0};
    model_regions regions;
    lay_out(net, &sp, queue->dev->backend, &regions);
    st = queue->dev->backend->alloc(queue->dev, (size_t)(regions.total - regions.window),
                                    &net->block);
    if (st != ST_OK) {
        model_free(&net, queue);
        return status_context(st, "activations of %lld tokens and %lld patches",
                              (long long)options->cap.tokens, (long long)options->cap.patches);
    }
    sp = (space){.base = net->block};
    lay_out(net, &sp, queue->dev->backend, &regions);
    *out = net;
    return ST_OK;
}

void model_free(model **mp, stream *queue)
{
    model *net = *mp;
    if (!net)
        return;
    exchange_window_close(queue, &net->window);
    if (net->block)
        queue->dev->backend->release(queue->dev, net->block);
    parts_done(net);
    free(net);
    *mp = NULL;
}

static pass_context start_run(const model *net, stream *queue, const device_batch *batch)
{
    const layout *degrees = &mesh_of(net)->layout;
    batch_caps sizes = batch_sizes(batch);
    return (pass_context){.stream = queue,
                          .dims = &net->dims,
                          .batch = batch,
                          .mesh = mesh_of(net),
                          .fsdp_units = net->registry->fsdp_units,
                          .sizes = sizes,
                          .context_tokens = sizes.tokens * degrees->tensor,
                          .all_tokens = sizes.tokens * degrees->tensor * degrees->context,
                          .act = st_dtype_size(queue->dev->backend->act),
                          .acc = st_dtype_size(queue->dev->backend->acc),
                          .router_bias = net->router_bias};
}

static status check_batch(const model *net, const device_batch *batch)
{
    const batch_caps *caps = &net->cap;
    if (batch->cap.tokens > caps->tokens || batch->cap.patches > caps->patches ||
        batch->cap.targets > caps->targets)
        return FAIL(ST_INTERNAL,
                    "batch capacity (%lld tokens, %lld patches, %lld targets) is above the "
                    "model's (%lld, %lld, %lld)",
                    (long long)batch->cap.tokens, (long long)batch->cap.patches,
                    (long long)batch->cap.targets, (long long)caps->tokens,
                    (long long)caps->patches, (long long)caps->targets);
    return ST_OK;
}

/* Runs vision and decoder up to x[end]. aux: where the auxiliary loss is written. */
static status forward_model(model *net, flight *sent, pass_context *ctx, void *aux)
{
    sent->decoder.aux.value = aux;
    ctx->stream->part = PART_VISION;
    if (net->has_vision)
        TRY(vision_fwd(&sent->vision, ctx));
    ctx->stream->part = PART_TEXT;
    return decoder_fwd(&sent->decoder, ctx, sent->vision.feature);
}

/* Runs decoder and vision backward from decoder.dx. */
static status backward(model *net, flight *sent, pass_context *ctx, void *aux)
{
    sent->decoder.aux.value = aux;
    ctx->stream->part = PART_TEXT;
    TRY(decoder_bwd(&sent->decoder, ctx, sent->vision.dfeature));
    ctx->stream->part = PART_VISION;
    return net->has_vision && sent->decoder.features_wanted ? vision_bwd(&sent->vision, ctx)
                                                            : ST_OK;
}

static head_targets targets_of(const pass_context *ctx, const loss_sums *sums)
{
    return (head_targets){.count = ctx->sizes.targets,
                          .token = ctx->batch->target_token,
                          .label = ctx->batch->target_label,
                          .weight = ctx->batch->target_weight,
                          .loss = sums->loss,
                          .weights = sums->weight};
}

/* Computes the loss of x[L], and decoder.dx with it if `use` is UNIT_TURN, that is if backward
 * follows. */
static status head_pass(model *net, flight *sent, pass_context *ctx, const head_targets *targets,
                        unit_use use)
{
    const int unit = unit_head(&net->dims);
    TRY(fsdp_units_enter(ctx->fsdp_units, ctx->stream, unit, use));
    TRY(head_loss(&net->head, ctx->stream, ctx->sizes.tokens,
                  sent->decoder.x[net->dims.text.layers], targets, use == UNIT_TURN,
                  sent->decoder.dx));
    return fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit, use);
}

int model_flights(const model *net)
{
    return net->n_flights;
}

static pipeline_exchange pipeline_exchange_of(model *net, stream *queue, const model_pass *step)
{
    if (step->kind == PASS_NONE)
        return (pipeline_exchange){0};
    pass_context ctx = start_run(net, queue, step->batch);
    return (pipeline_exchange){step->kind, &net->flight[step->flight].decoder, ctx.sizes.tokens};
}

status model_exchange_stage(model *net, stream *queue, const model_pass *next)
{
    const pipeline_exchange done = net->done, in = pipeline_exchange_of(net, queue, next);
    net->done = (pipeline_exchange){0};
    return pipeline_exchange_cross(mesh_comm(mesh_of(net), MESH_PIPELINE), queue, &net->dims, &done,
                                   &in);
}

status model_run(model *net, stream *queue, const model_pass *step, const loss_sums *sums)
{
    pass_context ctx = start_run(net, queue, step->batch);
    ctx.step = true;
    flight *sent = &net->flight[step->flight];
    head_targets targets = targets_of(&ctx, sums);
    if (!net->options.training)
        return FAIL(ST_INTERNAL, "a model made without training cannot run a training pass");
    TRY(check_batch(net, step->batch));
    TRY(fsdp_units_begin(ctx.fsdp_units, queue));
    if (step->kind != PASS_BACKWARD)
        TRY(forward_model(net, sent, &ctx, sums->aux));
    if (step->kind == PASS_BOTH) {
        queue->part = PART_HEAD;
        bind_head(net);
        TRY(head_pass(net, sent, &ctx, &targets, UNIT_TURN));
    }
    if (step->kind != PASS_FORWARD)
        TRY(backward(net, sent, &ctx, sums->aux));
    /* Listed now, because the flight may hold another batch at the hand-over. */
    net->done = pipeline_exchange_of(net, queue, step);
    return fsdp_units_end(ctx.fsdp_units, queue);
}

status model_forward_backward(model *net, stream *queue, const device_batch *batch,
                              const loss_sums *sums)
{
    return model_run(net, queue, &(model_pass){.kind = PASS_BOTH, .batch = batch}, sums);
}

status model_forward(model *net, stream *queue, const device_batch *batch, const loss_sums *sums,
                     void *nll, int32_t *best)
{
    const model_pass step = {.kind = PASS_FORWARD, .batch = batch};
    pass_context ctx = start_run(net, queue, batch);
    flight *sent = &net->flight[0];
    head_targets targets = targets_of(&ctx, sums);
    targets.nll = nll;
    targets.best = best;
    TRY(check_batch(net, batch));
    TRY(model_exchange_stage(net, queue, &step));
    TRY(fsdp_units_begin(ctx.fsdp_units, queue));
    TRY(forward_model(net, sent, &ctx, sums->aux));
    if (net->part.closes) {
        bind_head(net);
        TRY(head_pass(net, sent, &ctx, &targets, UNIT_FORWARD));
    }
    TRY(fsdp_units_end(ctx.fsdp_units, queue));
    net->done = pipeline_exchange_of(net, queue, &step);
    return model_exchange_stage(net, queue, &(model_pass){PASS_NONE});
}

status model_forward_cached(model *net, stream *queue, const device_batch *batch,
                            const kv_cache *cache)
{
    const model_pass step = {.kind = PASS_FORWARD, .batch = batch};
    pass_context ctx = start_run(net, queue, batch);
    ctx.cache = cache;
    TRY(check_batch(net, batch));
    if (ctx.all_tokens > cache->tokens || (cache->step && ctx.context_tokens > cache->queries))
        return FAIL(ST_INTERNAL, "%lld tokens for a cache of batches of %lld and steps of %lld",
                    (long long)ctx.all_tokens, (long long)cache->tokens, (long long)cache->queries);
    TRY(model_exchange_stage(net, queue, &step));
    TRY(fsdp_units_begin(ctx.fsdp_units, queue));
    TRY(forward_model(net, &net->flight[0], &ctx, NULL));
    TRY(fsdp_units_end(ctx.fsdp_units, queue));
    net->done = pipeline_exchange_of(net, queue, &step);
    return model_exchange_stage(net, queue, &(model_pass){PASS_NONE});
}

bool model_has_head(const model *net)
{
    return net->part.closes;
}

status model_logits(model *net, stream *queue, const int32_t *tokens, int64_t count,
                    void *out_logits)
{
    fsdp_units *units = net->registry->fsdp_units;
    bind_head(net);
    TRY(fsdp_units_begin(units, queue));
    if (net->dims.text.tied) { /* the head's weights are those of the embedding's unit */
        TRY(fsdp_units_enter(units, queue, unit_embedding(&net->dims), UNIT_FORWARD));
        TRY(fsdp_units_leave(units, queue, unit_embedding(&net->dims), UNIT_FORWARD));
    }
    TRY(fsdp_units_enter(units, queue, unit_head(&net->dims), UNIT_FORWARD));
    TRY(head_logits(&net->head, queue, net->flight[0].decoder.x[net->dims.text.layers], tokens,
                    count, out_logits));
    TRY(fsdp_units_leave(units, queue, unit_head(&net->dims), UNIT_FORWARD));
    return fsdp_units_end(units, queue);
}

void model_bias_router(model *net, const void *bias)
{
    net->router_bias = bias;
}

const int32_t *model_expert_count(const model *net)
{
    return net->flight[0].decoder.count;
}

/* ---- the outputs of units ---- */

/* False if a later block has overwritten x[at]: in a frozen tower two buffers take turns. */
static bool is_kept(const vision *tower, int64_t depth, int64_t at)
{
    for (int64_t i = at + 1; i <= depth; i++)
        if (tower->x[i] == tower->x[at])
            return false;
    return true;
}

/* Lists the tower's outputs; a deepstack merger follows its block. */
static int list_vision(const model *net, const vision *tower, int64_t patches, model_output *out)
{
    const vision_dims *dims = &net->dims.vision;
    const int64_t merged = patches / (dims->merge * dims->merge) * net->dims.text.hidden;
    int count = 0;
    for (int64_t i = 0; i <= dims->depth; i++) {
        if (is_kept(tower, dims->depth, i))
            out[count++] =
                (model_output){.unit = i == 0 ? unit_patch() : unit_block(&net->dims, i - 1),
                               .x = tower->x[i],
                               .count = patches * dims->hidden};
        for (int j = 0; j < dims->n_deepstack; j++)
            if (i > 0 && dims->deepstack[j] == i - 1)
                out[count++] = (model_output){.unit = unit_merger(&net->dims, 1 + j),
                                              .x = tower->feature[1 + j],
                                              .count = merged};
    }
    out[count++] =
        (model_output){.unit = unit_merger(&net->dims, 0), .x = tower->feature[0], .count = merged};
    return count;
}

int model_outputs(const model *net, int number, const device_batch *batch, model_output *out)
{
    const flight *sent = &net->flight[number];
    const batch_caps sizes = batch_sizes(batch);
    const int64_t first = net->part.first, width = sizes.tokens * net->dims.text.hidden;
    int count = 0;
    if (net->has_vision && sizes.patches > 0)
        count = list_vision(net, &sent->vision, sizes.patches, out);
    for (int64_t i = first; i <= net->part.end; i++)
        out[count++] = (model_output){.unit = i == 0 ? unit_embedding(&net->dims)
                                                     : unit_layer(&net->dims, i - 1),
                                      .arrived = i == first && !net->part.opens,
                                      .x = sent->decoder.x[i],
                                      .count = width};
    return count;
}
