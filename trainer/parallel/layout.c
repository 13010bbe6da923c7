#include "trainer/parallel/layout.h"

#include <inttypes.h>

static status check_experts(const layout *l)
{
    int64_t among =
        l->expert_tensor > 1 ? l->shard * l->context : l->shard * l->context * l->tensor;
    int64_t multiple = l->expert_tensor > 1 ? l->context : l->context * l->tensor;
    if (l->expert == 1)
        return ST_OK;
    if (among % l->expert != 0 || l->expert % multiple != 0)
        return FAIL(ST_CONFIG,
                    "parallelism.expert_parallel_degree %" PRId64 " must divide %" PRId64
                    " ranks and be a multiple of %" PRId64
                    " (data_parallel_shard x context%s; context%s)",
                    l->expert, among, multiple, l->expert_tensor > 1 ? "" : " x tensor",
                    l->expert_tensor > 1 ? "" : " x tensor");
    return ST_OK;
}

status layout_of(const conf *c, layout *out)
{
    layout l = {.replicate = c->dp_replicate,
                .shard = c->dp_shard,
                .context = c->context_degree,
                .tensor = c->tensor_degree,
                .pipeline = c->pipeline_degree,
                .expert = c->expert_degree,
                .expert_tensor = c->expert_tensor_degree,
                .world = c->world_size};
    int64_t others = l.replicate * l.context * l.tensor * l.pipeline;
    if (l.world == 0)
        l.world = others * (l.shard > 0 ? l.shard : 1);
    if (l.shard < 0)
        l.shard = l.world / others;
    if (l.shard < 1 || others * l.shard != l.world)
        return FAIL(ST_CONFIG,
                    "parallelism: %" PRId64 " ranks are no product of replicate %" PRId64
                    " x shard %" PRId64 " x context %" PRId64 " x tensor %" PRId64
                    " x pipeline %" PRId64,
                    l.world, l.replicate, c->dp_shard, l.context, l.tensor, l.pipeline);
    TRY(check_experts(&l));
    int64_t rows = c->training_local_batch_size * l.replicate * l.shard;
    if (c->training_global_batch_size % rows != 0)
        return FAIL(ST_CONFIG,
                    "training.global_batch_size %" PRId64
                    " is no multiple of training.local_batch_size %" PRId64 " x %" PRId64
                    " data-parallel ranks",
                    c->training_global_batch_size, c->training_local_batch_size,
                    l.replicate * l.shard);
    l.accumulation = c->training_global_batch_size / rows;
    *out = l;
    return ST_OK;
}
