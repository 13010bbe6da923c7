/* kv_cache.c: see kv_cache.h. */
#include "trainer/model/kv_cache.h"

#include <math.h>

#include "trainer/device/space.h"
#include "trainer/ops/table.h"

static void lay_out(kv_cache *c, int64_t layers, size_t act, space *sp)
{
    c->k = space_take(sp, layers * c->rows * c->width, act);
    c->v = space_take(sp, layers * c->rows * c->width, act);
    c->row = space_take(sp, c->tokens, sizeof(int32_t));
    c->first = space_take(sp, c->docs, sizeof(int32_t));
    c->length = space_take(sp, c->docs, sizeof(int32_t));
}

int64_t kv_cache_bytes(const model_dims *d, int64_t rows, const backend_vtable *v)
{
    const text_dims *t = &d->text;
    return 2 * t->layers * rows * t->kv_heads * t->head_dim * (int64_t)st_dtype_size(v->act);
}

status kv_cache_new(device *dev, const model_dims *d, int64_t rows, int64_t tokens, int64_t docs,
                    kv_cache *out)
{
    size_t act = st_dtype_size(dev->v->act);
    space sp = {0};
    kv_cache c = {
        .rows = rows, .width = d->text.kv_heads * d->text.head_dim, .tokens = tokens, .docs = docs};
    lay_out(&c, d->text.layers, act, &sp);
    TRY(dev->v->alloc(dev, sp.peak, &c.block));
    sp = (space){.base = c.block};
    lay_out(&c, d->text.layers, act, &sp);
    *out = c;
    return ST_OK;
}

void kv_cache_free(kv_cache *c, device *dev)
{
    if (c->block)
        dev->v->release(dev, c->block);
    *c = (kv_cache){0};
}

status kv_cache_clear(const kv_cache *c, stream *s, const model_dims *d)
{
    size_t bytes = (size_t)(d->text.layers * c->rows * c->width) * st_dtype_size(s->dev->v->act);
    TRY(s->dev->v->zero(s, c->k, bytes));
    return s->dev->v->zero(s, c->v, bytes);
}

static status keep(const run *r, const void *x, void *layer)
{
    return op_rows_scatter(r->s, &(rows_scatter_args){.n = r->n.tokens,
                                                      .width = r->cache->width,
                                                      .y_rows = r->cache->rows,
                                                      .index = r->cache->row,
                                                      .x = x,
                                                      .y = layer,
                                                      .distinct = true});
}

status kv_cache_keep(const run *r, int64_t layer, const void *k, const void *v)
{
    const kv_cache *c = r->cache;
    int64_t first = layer * c->rows * c->width;
    TRY(keep(r, k, at(c->k, first, r->act)));
    return keep(r, v, at(c->v, first, r->act));
}

status kv_cache_attend(const run *r, int64_t layer, const void *q, void *o)
{
    const kv_cache *c = r->cache;
    const text_dims *d = &r->d->text;
    int64_t first = layer * c->rows * c->width;
    return op_attention_cached(r->s,
                               &(attention_cached_args){.queries = r->n.tokens,
                                                        .heads = d->heads,
                                                        .kv_heads = d->kv_heads,
                                                        .head_dim = d->head_dim,
                                                        .rows = c->rows,
                                                        .scale = 1 / sqrt((double)d->head_dim),
                                                        .first = c->first,
                                                        .length = c->length,
                                                        .q = q,
                                                        .k = at(c->k, first, r->act),
                                                        .v = at(c->v, first, r->act),
                                                        .o = o});
}
