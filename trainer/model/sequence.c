/* sequence.c: gathers and reduces between the views of a row, as sequence.h describes them. */
#include "trainer/model/sequence.h"

#include "trainer/ops/table.h"

static st_dtype act_of(const pass_context *ctx)
{
    return ctx->stream->dev->backend->act;
}

status sequence_gather(const pass_context *ctx, comm_at at, const void *x, int64_t width,
                       void *room, const void **out)
{
    const comm *group = mesh_comm(ctx->mesh, MESH_TENSOR);
    *out = group->size > 1 ? room : x;
    if (group->size == 1)
        return ST_OK;
    return comm_all_gather(group, ctx->stream, at, x, room, ctx->sizes.tokens * width, act_of(ctx));
}

status sequence_reduce(const pass_context *ctx, comm_at at, const void *x, int64_t width, void *y)
{
    return comm_reduce_scatter(mesh_comm(ctx->mesh, MESH_TENSOR), ctx->stream, at, x, y,
                               ctx->sizes.tokens * width, act_of(ctx));
}

static status reorder_rows(const pass_context *ctx, const int32_t *index, int64_t width,
                           const void *x, void *y)
{
    return op_rows_gather(
        ctx->stream,
        &(rows_gather_args){.n = ctx->all_tokens, .width = width, .index = index, .x = x, .y = y});
}

status keys_gather(const pass_context *ctx, comm_at at, const void *x, int64_t width, void *ranks,
                   void *packed, const void **out)
{
    const comm *group = mesh_comm(ctx->mesh, MESH_CONTEXT);
    *out = group->size > 1 ? packed : x;
    if (group->size == 1)
        return ST_OK;
    TRY(comm_all_gather(group, ctx->stream, at, x, ranks, ctx->context_tokens * width,
                        act_of(ctx)));
    return reorder_rows(ctx, ctx->batch->key_row, width, ranks, packed);
}

status keys_reduce(const pass_context *ctx, comm_at at, const void *x, int64_t width, void *ranks,
                   void *y)
{
    const comm *group = mesh_comm(ctx->mesh, MESH_CONTEXT);
    if (group->size > 1)
        TRY(reorder_rows(ctx, ctx->batch->key_back, width, x, ranks));
    return comm_reduce_scatter(group, ctx->stream, at, group->size > 1 ? ranks : x, y,
                               ctx->context_tokens * width, act_of(ctx));
}

status features_gather(const pass_context *ctx, comm_at at, const void *x, void *room,
                       const void **out)
{
    const comm *group = mesh_comm(ctx->mesh, MESH_ROW);
    *out = group->size > 1 ? room : x;
    if (group->size == 1)
        return ST_OK;
    return comm_all_gather(group, ctx->stream, at, x, room,
                           ctx->batch->feature_rows * ctx->dims->text.hidden, act_of(ctx));
}

status features_reduce(const pass_context *ctx, comm_at at, const void *x, void *y)
{
    return comm_reduce_scatter(mesh_comm(ctx->mesh, MESH_ROW), ctx->stream, at, x, y,
                               ctx->batch->feature_rows * ctx->dims->text.hidden, act_of(ctx));
}
