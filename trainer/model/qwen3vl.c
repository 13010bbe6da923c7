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

#include "trainer/model/kv_cache.h"
#include "trainer/model/model_parts.h"

static const mesh *mesh_of(const model *m)
{
    return m->options.mesh ? m->options.mesh : &m->alone;
}

int64_t model_logit_rows(const model_options *o)
{
    int64_t rows = o->logit_rows > 0 ? o->logit_rows : LOGIT_ROWS_DEFAULT;
    return rows < o->cap.targets || o->cap.targets == 0 ? rows : o->cap.targets;
}

static void parts_done(model *m)
{
    for (int f = 0; f < m->n_flights; f++) {
        vision_done(&m->flight[f].vision);
        decoder_done(&m->flight[f].decoder);
    }
    free(m->flight);
}

/* Sets whether token copies are exchanged on the device, and through which window. */
static void set_exchange(model *m, bool on_device, const exchange_window *window)
{
    for (int f = 0; f < m->n_flights; f++) {
        exchange *state = &m->flight[f].decoder.moe_scratch.exchange;
        state->on_device = on_device && state->rows > 0;
        state->window = window;
    }
}

static const exchange *exchange_of(const model *m)
{
    return &m->flight[0].decoder.moe_scratch.exchange;
}

int model_flights_of(const model_options *o)
{
    if (!o->mesh || !o->training)
        return 1;
    const layout *l = &o->mesh->layout;
    return (int)stage_flights(o->mesh->place.pipeline, (int)l->pipeline, l->accumulation);
}

static status parts_init(model *m, const model_dims *dims, const model_options *o)
{
    *m = (model){.dims = *dims, .options = *o};
    mesh_alone(&m->alone);
    row_share share = row_share_of(mesh_of(m));
    m->cap = batch_caps_shared(&o->cap, &share);
    m->part = stage_part_of(dims, &mesh_of(m)->layout, mesh_of(m)->place.pipeline);
    m->has_vision = dims->vision.depth > 0 && m->part.opens;
    m->head = (head){.hidden = dims->text.hidden,
                     .vocab = dims->text.vocab,
                     .eps = dims->text.rms_eps,
                     .rows = model_logit_rows(o)};
    const int n = model_flights_of(o);
    m->flight = calloc((size_t)n, sizeof *m->flight);
    if (!m->flight)
        return FAIL(ST_NO_MEMORY, "no memory for %d micro-batches under way", n);
    status st = ST_OK;
    while (m->n_flights < n && st == ST_OK) {
        flight *f = &m->flight[m->n_flights++];
        st = decoder_init(&f->decoder, &m->dims, &mesh_of(m)->layout, &m->part, m->cap.tokens);
        if (st == ST_OK && m->has_vision)
            st = vision_init(&f->vision, &m->dims);
    }
    set_exchange(m, o->exchange != EXCHANGE_BY_HOST, NULL);
    if (st != ST_OK)
        parts_done(m);
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

static shape shape_of(const model *m, const backend_vtable *v)
{
    const layout *ranks = &mesh_of(m)->layout;
    return (shape){.dims = &m->dims,
                   .cap = m->cap,
                   .act = st_dtype_size(v->act),
                   .acc = st_dtype_size(v->acc),
                   .ranks = ranks,
                   .context_tokens = m->cap.tokens * ranks->tensor,
                   .all_tokens = m->cap.tokens * ranks->tensor * ranks->context};
}

static void lay_out(model *m, space *sp, const backend_vtable *v, model_regions *out)
{
    const model_options *o = &m->options;
    shape sizes = shape_of(m, v);
    bool eye_trains = o->training && !o->vision_frozen;
    vision_modes eye = {
        .training = eye_trains, .recomputed = o->recomputed.vision, .frozen = o->tower_frozen};
    decoder_modes text = {.training = o->training,
                          .recomputed = o->recomputed.text,
                          .aux = o->router_aux_coef > 0,
                          .lora_rank = o->lora_rank,
                          .lora_experts = o->lora_experts};
    *out = (model_regions){0};
    for (int f = 0; f < m->n_flights; f++) {
        size_t begin = space_mark(sp);
        if (m->has_vision)
            vision_layout(&m->flight[f].vision, sp, &sizes, eye);
        size_t seen = space_mark(sp);
        decoder_layout(&m->flight[f].decoder, sp, &sizes, text);
        out->vision_kept += (int64_t)(seen - begin);
        out->text_kept += (int64_t)(space_mark(sp) - seen);
    }
    size_t mark = space_mark(sp), peak = mark;
    for (int f = 0; f < m->n_flights && m->has_vision; f++) {
        space_rewind(sp, mark);
        vision_layout_scratch(&m->flight[f].vision, sp, &sizes, eye);
    }
    out->vision_scratch = scratch(sp, mark, &peak);
    for (int f = 0; f < m->n_flights; f++) {
        space_rewind(sp, mark);
        decoder_layout_scratch(&m->flight[f].decoder, sp, &sizes, text);
    }
    out->text_scratch = scratch(sp, mark, &peak);
    if (m->part.closes)
        head_layout(&m->head, sp, m->cap.targets, sizes.act, sizes.acc, o->training);
    out->head_scratch = scratch(sp, mark, &peak);
    if (exchange_of(m)->on_device)
        out->window =
            exchange_window_bytes(&m->dims.text, sizes.ranks, exchange_of(m)->slots, sizes.act);
    out->total = (int64_t)peak + out->window;
}

status model_regions_of(const model_dims *dims, const model_options *o,
                        const backend_vtable *backend, model_regions *out)
{
    model m;
    TRY(parts_init(&m, dims, o));
    space sp = {0};
    lay_out(&m, &sp, backend, out);
    parts_done(&m);
    return ST_OK;
}

status model_kinds_bytes(const model_dims *dims, const model_options *o,
                         const backend_vtable *backend, unsigned kinds, int64_t *out_layer,
                         int64_t *out_block)
{
    model m;
    vision_saved block;
    space sp = {0};
    TRY(parts_init(&m, dims, o));
    const shape sizes = shape_of(&m, backend);
    *out_layer = decoder_kinds_bytes(&m.flight[0].decoder, &sizes, dims->text.layers - 1, kinds);
    if (m.has_vision)
        vision_saved_layout(&block, &sp, &sizes, kinds);
    *out_block = (int64_t)sp.used;
    parts_done(&m);
    return ST_OK;
}

status model_bytes(const model_dims *dims, const model_options *o, const backend_vtable *backend,
                   int64_t *out_bytes)
{
    model_regions regions;
    TRY(model_regions_of(dims, o, backend, &regions));
    *out_bytes = regions.total;
    return ST_OK;
}

void model_options_freeze(model_options *o, const params *p)
{
    const param *table = params_find(p, "model.visual.pos_embed.weight");
    o->tower_frozen = !params_trains(p, GROUP_VISION) && (!table || table->frozen);
    o->vision_frozen = o->tower_frozen && !params_trains(p, GROUP_MERGER);
    o->lora_rank = p->lora_rank;
    o->lora_experts = p->lora_experts;
}

static void bind(model *m, params *p)
{
    m->registry = p;
    for (int f = 0; f < m->n_flights; f++) {
        decoder_bind(&m->flight[f].decoder, p, &m->dims);
        if (m->has_vision)
            vision_bind(&m->flight[f].vision, p, &m->dims);
    }
}

/* Takes the addresses of the head's weights; in a tied model they are those of the embedding. */
static void bind_head(model *m)
{
    param *norm = params_get(m->registry, "%snorm.weight", m->registry->text_prefix);
    param *w = m->dims.text.tied
                   ? params_get(m->registry, "%sembed_tokens.weight", m->registry->text_prefix)
                   : params_get(m->registry, "lm_head.weight");
    m->head.norm = norm->act;
    m->head.dnorm = param_gradient(norm);
    m->head.weight = w->act;
    m->head.dweight = w->grad;
}

static status open_exchange(model *m, stream *s)
{
    const exchange *state = exchange_of(m);
    const bool must = m->options.exchange == EXCHANGE_BY_DEVICE;
    bool open;
    if (!state->on_device)
        return ST_OK;
    TRY(exchange_window_open(s, mesh_of(m), &m->dims.text, state->slots, must, &m->window, &open));
    set_exchange(m, open, &m->window);
    return ST_OK;
}

const exchange_window *model_exchange(const model *m)
{
    return exchange_of(m)->on_device ? &m->window : NULL;
}

status model_new(stream *s, const model_dims *dims, params *p, const model_options *o, model **out)
{
    model *m = malloc(sizeof *m);
    if (!m)
        return FAIL(ST_NO_MEMORY, "no memory for a model");
    model_options own = *o;
    own.mesh = o->mesh ? o->mesh : p->mesh;
    status st = parts_init(m, dims, &own);
    if (st != ST_OK) {
        free(m);
        return st;
    }
    bind(m, p);
    const flight *f = &m->flight[0];
    if (o->training &&
        ((o->vision_frozen && f->decoder.features_wanted) ||
         (o->tower_frozen && m->has_vision && f->vision.lowest < dims->vision.depth))) {
        model_free(&m, s);
        return FAIL(ST_INTERNAL,
                    "the options freeze the vision tower, but the registry trains a part of it");
    }
    st = open_exchange(m, s);
    if (st != ST_OK) {
        model_free(&m, s);
        return st;
    }
    space sp = {0};
    model_regions regions;
    lay_out(m, &sp, s->dev->backend, &regions);
    st = s->dev->backend->alloc(s->dev, (size_t)(regions.total - regions.window), &m->block);
    if (st != ST_OK) {
        model_free(&m, s);
        return status_context(st, "activations of %lld tokens and %lld patches",
                              (long long)o->cap.tokens, (long long)o->cap.patches);
    }
    sp = (space){.base = m->block};
    lay_out(m, &sp, s->dev->backend, &regions);
    *out = m;
    return ST_OK;
}

void model_free(model **mp, stream *s)
{
    model *m = *mp;
    if (!m)
        return;
    exchange_window_close(s, &m->window);
    if (m->block)
        s->dev->backend->release(s->dev, m->block);
    parts_done(m);
    free(m);
    *mp = NULL;
}

static pass_context start_run(const model *m, stream *s, const device_batch *batch)
{
    const layout *l = &mesh_of(m)->layout;
    batch_caps sizes = batch_sizes(batch);
    return (pass_context){.stream = s,
                          .dims = &m->dims,
                          .batch = batch,
                          .mesh = mesh_of(m),
                          .fsdp_units = m->registry->fsdp_units,
                          .sizes = sizes,
                          .context_tokens = sizes.tokens * l->tensor,
                          .all_tokens = sizes.tokens * l->tensor * l->context,
                          .act = st_dtype_size(s->dev->backend->act),
                          .acc = st_dtype_size(s->dev->backend->acc),
                          .router_bias = m->router_bias};
}

static status check_batch(const model *m, const device_batch *batch)
{
    const batch_caps *c = &m->cap;
    if (batch->cap.tokens > c->tokens || batch->cap.patches > c->patches ||
        batch->cap.targets > c->targets)
        return FAIL(ST_INTERNAL,
                    "batch capacity (%lld tokens, %lld patches, %lld targets) is above the "
                    "model's (%lld, %lld, %lld)",
                    (long long)batch->cap.tokens, (long long)batch->cap.patches,
                    (long long)batch->cap.targets, (long long)c->tokens, (long long)c->patches,
                    (long long)c->targets);
    return ST_OK;
}

/* Runs vision and decoder up to x[end]. aux: where the auxiliary loss is written. */
static status forward_model(model *m, flight *f, pass_context *ctx, void *aux)
{
    f->decoder.aux.value = aux;
    ctx->stream->part = PART_VISION;
    if (m->has_vision)
        TRY(vision_fwd(&f->vision, ctx));
    ctx->stream->part = PART_TEXT;
    return decoder_fwd(&f->decoder, ctx, f->vision.feature);
}

/* Runs decoder and vision backward from decoder.dx. */
static status backward(model *m, flight *f, pass_context *ctx, void *aux)
{
    f->decoder.aux.value = aux;
    ctx->stream->part = PART_TEXT;
    TRY(decoder_bwd(&f->decoder, ctx, f->vision.dfeature));
    ctx->stream->part = PART_VISION;
    return m->has_vision && f->decoder.features_wanted ? vision_bwd(&f->vision, ctx) : ST_OK;
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
static status head_pass(model *m, flight *f, pass_context *ctx, const head_targets *t, unit_use use)
{
    const int unit = unit_head(&m->dims);
    TRY(fsdp_units_enter(ctx->fsdp_units, ctx->stream, unit, use));
    TRY(head_loss(&m->head, ctx->stream, ctx->sizes.tokens, f->decoder.x[m->dims.text.layers], t,
                  use == UNIT_TURN, f->decoder.dx));
    return fsdp_units_leave(ctx->fsdp_units, ctx->stream, unit, use);
}

int model_flights(const model *m)
{
    return m->n_flights;
}

static pipeline_exchange pipeline_exchange_of(model *m, stream *s, const model_pass *p)
{
    if (p->kind == PASS_NONE)
        return (pipeline_exchange){0};
    pass_context ctx = start_run(m, s, p->batch);
    return (pipeline_exchange){p->kind, &m->flight[p->flight].decoder, ctx.sizes.tokens};
}

status model_hand_over(model *m, stream *s, const model_pass *next)
{
    const pipeline_exchange done = m->done, in = pipeline_exchange_of(m, s, next);
    m->done = (pipeline_exchange){0};
    return pipeline_exchange_cross(mesh_comm(mesh_of(m), MESH_PIPELINE), s, &m->dims, &done, &in);
}

status model_run(model *m, stream *s, const model_pass *p, const loss_sums *sums)
{
    pass_context ctx = start_run(m, s, p->batch);
    ctx.step = true;
    flight *f = &m->flight[p->flight];
    head_targets t = targets_of(&ctx, sums);
    if (!m->options.training)
        return FAIL(ST_INTERNAL, "a model made without training cannot run a training pass");
    TRY(check_batch(m, p->batch));
    TRY(fsdp_units_begin(ctx.fsdp_units, s));
    if (p->kind != PASS_BACKWARD)
        TRY(forward_model(m, f, &ctx, sums->aux));
    if (p->kind == PASS_BOTH) {
        s->part = PART_HEAD;
        bind_head(m);
        TRY(head_pass(m, f, &ctx, &t, UNIT_TURN));
    }
    if (p->kind != PASS_FORWARD)
        TRY(backward(m, f, &ctx, sums->aux));
    /* Listed now, because the flight may hold another batch at the hand-over. */
    m->done = pipeline_exchange_of(m, s, p);
    return fsdp_units_end(ctx.fsdp_units, s);
}

status model_forward_backward(model *m, stream *s, const device_batch *batch, const loss_sums *sums)
{
    return model_run(m, s, &(model_pass){.kind = PASS_BOTH, .batch = batch}, sums);
}

status model_forward(model *m, stream *s, const device_batch *batch, const loss_sums *sums,
                     void *nll, int32_t *best)
{
    const model_pass p = {.kind = PASS_FORWARD, .batch = batch};
    pass_context ctx = start_run(m, s, batch);
    flight *f = &m->flight[0];
    head_targets t = targets_of(&ctx, sums);
    t.nll = nll;
    t.best = best;
    TRY(check_batch(m, batch));
    TRY(model_hand_over(m, s, &p));
    TRY(fsdp_units_begin(ctx.fsdp_units, s));
    TRY(forward_model(m, f, &ctx, sums->aux));
    if (m->part.closes) {
        bind_head(m);
        TRY(head_pass(m, f, &ctx, &t, UNIT_FORWARD));
    }
    TRY(fsdp_units_end(ctx.fsdp_units, s));
    m->done = pipeline_exchange_of(m, s, &p);
    return model_hand_over(m, s, &(model_pass){PASS_NONE});
}

status model_forward_cached(model *m, stream *s, const device_batch *batch, const kv_cache *cache)
{
    const model_pass p = {.kind = PASS_FORWARD, .batch = batch};
    pass_context ctx = start_run(m, s, batch);
    ctx.cache = cache;
    TRY(check_batch(m, batch));
    if (ctx.all_tokens > cache->tokens || (cache->step && ctx.context_tokens > cache->queries))
        return FAIL(ST_INTERNAL, "%lld tokens for a cache of batches of %lld and steps of %lld",
                    (long long)ctx.all_tokens, (long long)cache->tokens, (long long)cache->queries);
    TRY(model_hand_over(m, s, &p));
    TRY(fsdp_units_begin(ctx.fsdp_units, s));
    TRY(forward_model(m, &m->flight[0], &ctx, NULL));
    TRY(fsdp_units_end(ctx.fsdp_units, s));
    m->done = pipeline_exchange_of(m, s, &p);
    return model_hand_over(m, s, &(model_pass){PASS_NONE});
}

bool model_chooses(const model *m)
{
    return m->part.closes;
}

status model_logits(model *m, stream *s, const int32_t *tokens, int64_t n, void *out_logits)
{
    fsdp_units *u = m->registry->fsdp_units;
    bind_head(m);
    TRY(fsdp_units_begin(u, s));
    if (m->dims.text.tied) { /* the head's weights are those of the embedding's unit */
        TRY(fsdp_units_enter(u, s, unit_embedding(&m->dims), UNIT_FORWARD));
        TRY(fsdp_units_leave(u, s, unit_embedding(&m->dims), UNIT_FORWARD));
    }
    TRY(fsdp_units_enter(u, s, unit_head(&m->dims), UNIT_FORWARD));
    TRY(head_logits(&m->head, s, m->flight[0].decoder.x[m->dims.text.layers], tokens, n,
                    out_logits));
    TRY(fsdp_units_leave(u, s, unit_head(&m->dims), UNIT_FORWARD));
    return fsdp_units_end(u, s);
}

void model_bias_router(model *m, const void *bias)
{
    m->router_bias = bias;
}

const int32_t *model_expert_count(const model *m)
{
    return m->flight[0].decoder.count;
}
