/* sequence.c: gathers and reduces between the views of a row, as sequence.h describes them. */
#include "trainer/model/sequence.h"

#include "trainer/ops/table.h"

static st_dtype act_of(const pass_context *r)
{
    return r->s->dev->v->act;
}

status sequence_gather(const pass_context *r, comm_at at, const void *x, int64_t width, void *room,
                       const void **out)
{
    const comm *c = mesh_comm(r->mesh, MESH_TENSOR);
    *out = c->size > 1 ? room : x;
    if (c->size == 1)
        return ST_OK;
    return comm_all_gather(c, r->s, at, x, room, r->n.tokens * width, act_of(r));
}

status sequence_reduce(const pass_context *r, comm_at at, const void *x, int64_t width, void *y)
{
    return comm_reduce_scatter(mesh_comm(r->mesh, MESH_TENSOR), r->s, at, x, y, r->n.tokens * width,
                               act_of(r));
}

static status reorder_rows(const pass_context *r, const int32_t *index, int64_t width,
                           const void *x, void *y)
{
    return op_rows_gather(
        r->s,
        &(rows_gather_args){.n = r->all_tokens, .width = width, .index = index, .x = x, .y = y});
}

status keys_gather(const pass_context *r, comm_at at, const void *x, int64_t width, void *ranks,
                   void *packed, const void **out)
{
    const comm *c = mesh_comm(r->mesh, MESH_CONTEXT);
    *out = c->size > 1 ? packed : x;
    if (c->size == 1)
        return ST_OK;
    TRY(comm_all_gather(c, r->s, at, x, ranks, r->context_tokens * width, act_of(r)));
    return reorder_rows(r, r->b->key_row, width, ranks, packed);
}

status keys_reduce(const pass_context *r, comm_at at, const void *x, int64_t width, void *ranks,
                   void *y)
{
    const comm *c = mesh_comm(r->mesh, MESH_CONTEXT);
    if (c->size > 1)
        TRY(reorder_rows(r, r->b->key_back, width, x, ranks));
    return comm_reduce_scatter(c, r->s, at, c->size > 1 ? ranks : x, y, r->context_tokens * width,
                               act_of(r));
}

status features_gather(const pass_context *r, comm_at at, const void *x, void *room,
                       const void **out)
{
    const comm *c = mesh_comm(r->mesh, MESH_ROW);
    *out = c->size > 1 ? room : x;
    if (c->size == 1)
        return ST_OK;
    return comm_all_gather(c, r->s, at, x, room, r->b->feature_rows * r->d->text.hidden, act_of(r));
}

status features_reduce(const pass_context *r, comm_at at, const void *x, void *y)
{
    return comm_reduce_scatter(mesh_comm(r->mesh, MESH_ROW), r->s, at, x, y,
                               r->b->feature_rows * r->d->text.hidden, act_of(r));
}
