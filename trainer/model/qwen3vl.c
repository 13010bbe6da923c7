/* qwen3vl.c: the parts of the model put together, and their memory.
 *
 *   pixels --vision--> features --+
 *   tokens --------------------decoder--> x[L] --head--> loss
 *
 * One device block holds everything: what lives through the micro-batch, then the scratch of
 * vision, decoder and head, which are never at work together. */
#include "trainer/model/qwen3vl.h"

#include <stdlib.h>

#include "trainer/loss/loss.h"
#include "trainer/model/decoder.h"
#include "trainer/model/kv_cache.h"
#include "trainer/model/vision.h"

struct model {
    model_dims d;
    model_options o;
    params *p;
    mesh alone;     /* where no mesh is given */
    batch_caps cap; /* of this rank */
    bool has_vision;
    vision vision;
    decoder decoder;
    head head;
    void *block; /* device memory of all activations */
    const void *router_bias;
};

static const mesh *mesh_of(const model *m)
{
    return m->o.mesh ? m->o.mesh : &m->alone;
}

static int64_t logit_rows(const model_options *o)
{
    int64_t rows = o->logit_rows > 0 ? o->logit_rows : LOGIT_ROWS_DEFAULT;
    return rows < o->cap.targets || o->cap.targets == 0 ? rows : o->cap.targets;
}

static status parts_init(model *m, const model_dims *d, const model_options *o)
{
    *m = (model){.d = *d, .o = *o, .has_vision = d->vision.depth > 0};
    mesh_alone(&m->alone);
    row_share share = row_share_of(mesh_of(m));
    m->cap = batch_caps_shared(&o->cap, &share);
    m->head = (head){.hidden = d->text.hidden,
                     .vocab = d->text.vocab,
                     .eps = d->text.rms_eps,
                     .rows = logit_rows(o)};
    TRY(decoder_init(&m->decoder, &m->d, &mesh_of(m)->layout, m->cap.tokens));
    if (!m->has_vision)
        return ST_OK;
    status st = vision_init(&m->vision, &m->d);
    if (st != ST_OK)
        decoder_done(&m->decoder);
    return st;
}

static void parts_done(model *m)
{
    vision_done(&m->vision);
    decoder_done(&m->decoder);
}

/* The most that was taken since mark, which the next user of scratch gets. */
static int64_t scratch(space *sp, size_t mark, size_t *inout_peak)
{
    size_t top = sp->peak;
    space_rewind(sp, mark);
    sp->peak = mark;
    if (top > *inout_peak)
        *inout_peak = top;
    return (int64_t)(top - mark);
}

static void lay_out(model *m, space *sp, const backend_vtable *v, model_regions *out)
{
    const model_options *o = &m->o;
    const layout *ranks = &mesh_of(m)->layout;
    shape z = {.d = &m->d,
               .cap = m->cap,
               .act = st_dtype_size(v->act),
               .acc = st_dtype_size(v->acc),
               .ranks = ranks,
               .context_tokens = m->cap.tokens * ranks->tensor,
               .all_tokens = m->cap.tokens * ranks->tensor * ranks->context};
    bool keep = o->training && !o->checkpoint_full;
    bool eye_trains = o->training && !o->vision_frozen;
    vision_modes eye = {
        .training = eye_trains, .keep = keep && eye_trains, .frozen = o->tower_frozen};
    decoder_modes text = {.training = o->training,
                          .keep = keep,
                          .aux = o->router_aux_coef > 0,
                          .lora_rank = o->lora_rank,
                          .lora_experts = o->lora_experts};
    if (m->has_vision)
        vision_layout(&m->vision, sp, &z, eye);
    size_t seen = space_mark(sp);
    decoder_layout(&m->decoder, sp, &z, text);
    size_t mark = space_mark(sp), peak = mark;
    *out = (model_regions){.vision_kept = (int64_t)seen, .text_kept = (int64_t)(mark - seen)};
    if (m->has_vision)
        vision_layout_scratch(&m->vision, sp, &z, eye);
    out->vision_scratch = scratch(sp, mark, &peak);
    decoder_layout_scratch(&m->decoder, sp, &z, text);
    out->text_scratch = scratch(sp, mark, &peak);
    head_layout(&m->head, sp, m->cap.targets, z.act, z.acc, o->training);
    out->head_scratch = scratch(sp, mark, &peak);
    out->total = (int64_t)peak;
}

status model_regions_of(const model_dims *d, const model_options *o, const backend_vtable *backend,
                        model_regions *out)
{
    model m;
    TRY(parts_init(&m, d, o));
    space sp = {0};
    lay_out(&m, &sp, backend, out);
    parts_done(&m);
    return ST_OK;
}

status model_bytes(const model_dims *d, const model_options *o, const backend_vtable *backend,
                   int64_t *out_bytes)
{
    model_regions regions;
    TRY(model_regions_of(d, o, backend, &regions));
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
    m->p = p;
    decoder_bind(&m->decoder, p, &m->d);
    if (m->has_vision)
        vision_bind(&m->vision, p, &m->d);
}

/* The head's weights by address; tied models share the embedding. */
static void bind_head(model *m)
{
    param *norm = params_get(m->p, "%snorm.weight", m->p->text_prefix);
    param *w = m->d.text.tied ? params_get(m->p, "%sembed_tokens.weight", m->p->text_prefix)
                              : params_get(m->p, "lm_head.weight");
    m->head.norm = norm->act;
    m->head.dnorm = param_gradient(norm);
    m->head.weight = w->act;
    m->head.dweight = w->grad;
}

status model_new(stream *s, const model_dims *d, params *p, const model_options *o, model **out)
{
    model *m = malloc(sizeof *m);
    if (!m)
        return FAIL(ST_NO_MEMORY, "no memory for a model");
    model_options own = *o;
    own.mesh = o->mesh ? o->mesh : p->mesh;
    status st = parts_init(m, d, &own);
    if (st != ST_OK) {
        free(m);
        return st;
    }
    bind(m, p);
    if (o->training && ((o->vision_frozen && m->decoder.features_wanted) ||
                        (o->tower_frozen && m->has_vision && m->vision.lowest < d->vision.depth))) {
        model_free(&m, s);
        return FAIL(ST_INTERNAL, "a model laid out for a frozen vision tower has to train it");
    }
    space sp = {0};
    model_regions regions;
    lay_out(m, &sp, s->dev->v, &regions);
    st = s->dev->v->alloc(s->dev, (size_t)regions.total, &m->block);
    if (st != ST_OK) {
        model_free(&m, s);
        return status_context(st, "activations of %lld tokens and %lld patches",
                              (long long)o->cap.tokens, (long long)o->cap.patches);
    }
    sp = (space){.base = m->block};
    lay_out(m, &sp, s->dev->v, &regions);
    *out = m;
    return ST_OK;
}

void model_free(model **mp, stream *s)
{
    model *m = *mp;
    if (!m)
        return;
    if (m->block)
        s->dev->v->release(s->dev, m->block);
    parts_done(m);
    free(m);
    *mp = NULL;
}

static run start(const model *m, stream *s, const device_batch *b)
{
    const layout *l = &mesh_of(m)->layout;
    batch_caps n = batch_sizes(b);
    return (run){.s = s,
                 .d = &m->d,
                 .b = b,
                 .mesh = mesh_of(m),
                 .units = m->p->units,
                 .n = n,
                 .context_tokens = n.tokens * l->tensor,
                 .all_tokens = n.tokens * l->tensor * l->context,
                 .act = st_dtype_size(s->dev->v->act),
                 .acc = st_dtype_size(s->dev->v->acc),
                 .router_bias = m->router_bias};
}

static status check_batch(const model *m, const device_batch *b)
{
    const batch_caps *c = &m->cap;
    if (b->cap.tokens > c->tokens || b->cap.patches > c->patches || b->cap.targets > c->targets)
        return FAIL(ST_INTERNAL,
                    "batch capacity (%lld tokens, %lld patches, %lld targets) is above the "
                    "model's (%lld, %lld, %lld)",
                    (long long)b->cap.tokens, (long long)b->cap.patches, (long long)b->cap.targets,
                    (long long)c->tokens, (long long)c->patches, (long long)c->targets);
    return ST_OK;
}

/* Up to x[L]; the aux value lands in aux. */
static status forward(model *m, run *r, void *aux)
{
    m->decoder.aux.value = aux;
    r->s->part = PART_VISION;
    if (m->has_vision)
        TRY(vision_fwd(&m->vision, r));
    r->s->part = PART_TEXT;
    return decoder_fwd(&m->decoder, r, m->vision.feature);
}

static head_targets targets_of(const run *r, const loss_sums *sums)
{
    return (head_targets){.n = r->n.targets,
                          .token = r->b->target_token,
                          .label = r->b->target_label,
                          .weight = r->b->target_weight,
                          .loss = sums->loss,
                          .weights = sums->weight};
}

status model_forward_backward(model *m, stream *s, const device_batch *b, const loss_sums *sums)
{
    run r = start(m, s, b);
    r.step = true;
    const void *last = m->decoder.x[m->d.text.layers];
    head_targets t = targets_of(&r, sums);
    if (!m->o.training)
        return FAIL(ST_INTERNAL, "backward of a model that was made without training");
    TRY(check_batch(m, b));
    bind_head(m);
    TRY(units_begin(r.units, s));
    TRY(forward(m, &r, sums->aux));
    s->part = PART_HEAD;
    TRY(units_enter(r.units, s, unit_head(&m->d), UNIT_TURN));
    TRY(head_loss(&m->head, s, r.n.tokens, last, &t, true, m->decoder.dx));
    TRY(units_leave(r.units, s, unit_head(&m->d), UNIT_TURN));
    s->part = PART_TEXT;
    TRY(decoder_bwd(&m->decoder, &r, m->vision.dfeature));
    s->part = PART_VISION;
    if (m->decoder.features_wanted)
        TRY(vision_bwd(&m->vision, &r));
    return units_end(r.units, s);
}

status model_forward(model *m, stream *s, const device_batch *b, const loss_sums *sums, void *nll,
                     int32_t *best)
{
    run r = start(m, s, b);
    head_targets t = targets_of(&r, sums);
    t.nll = nll;
    t.best = best;
    TRY(check_batch(m, b));
    bind_head(m);
    TRY(units_begin(r.units, s));
    TRY(forward(m, &r, sums->aux));
    TRY(units_enter(r.units, s, unit_head(&m->d), UNIT_FORWARD));
    TRY(head_loss(&m->head, s, r.n.tokens, m->decoder.x[m->d.text.layers], &t, false, NULL));
    TRY(units_leave(r.units, s, unit_head(&m->d), UNIT_FORWARD));
    return units_end(r.units, s);
}

status model_forward_cached(model *m, stream *s, const device_batch *b, const kv_cache *cache)
{
    run r = start(m, s, b);
    r.cache = cache;
    TRY(check_batch(m, b));
    if (r.n.tokens > cache->tokens || (cache->step && r.n.tokens > cache->docs))
        return FAIL(ST_INTERNAL, "%lld tokens for a cache of batches of %lld and steps of %lld",
                    (long long)r.n.tokens, (long long)cache->tokens, (long long)cache->docs);
    TRY(units_begin(r.units, s));
    TRY(forward(m, &r, NULL));
    return units_end(r.units, s);
}

status model_logits(model *m, stream *s, const int32_t *tokens, int64_t n, void *out_logits)
{
    units *u = m->p->units;
    bind_head(m);
    TRY(units_begin(u, s));
    if (m->d.text.tied) { /* the head's weights are the embedding */
        TRY(units_enter(u, s, unit_embedding(&m->d), UNIT_FORWARD));
        TRY(units_leave(u, s, unit_embedding(&m->d), UNIT_FORWARD));
    }
    TRY(units_enter(u, s, unit_head(&m->d), UNIT_FORWARD));
    TRY(head_logits(&m->head, s, m->decoder.x[m->d.text.layers], tokens, n, out_logits));
    TRY(units_leave(u, s, unit_head(&m->d), UNIT_FORWARD));
    return units_end(u, s);
}

void model_bias_router(model *m, const void *bias)
{
    m->router_bias = bias;
}

const int32_t *model_expert_count(const model *m)
{
    return m->decoder.count;
}
