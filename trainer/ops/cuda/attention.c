/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c: decides whose kernels compute a call of attention on CUDA. cuDNN does it if the
 * device's choice is cuDNN (device/choices.h), and if cuDNN takes the shape and has an engine for
 * it; otherwise our own kernels do. Our kernels also do it if the queries are only some of a
 * segment's tokens (cu_keys), which cuDNN's masks cannot express. */
#include "trainer/ops/cuda/attention_cudnn.h"
#include "trainer/ops/cuda/attention_portable.h"
#include "trainer/ops/table.h"

status cuda_attention_fwd(stream *queue, const attention_fwd_args *args);
status cuda_attention_bwd(stream *queue, const attention_bwd_args *args);

static bool by_cudnn(const stream *queue, bool causal, bool backward)
{
    return queue->dev->choices.way[choice_attention(causal, backward)] != ATTENTION_BY_OURS;
}

status cuda_attention_fwd(stream *queue, const attention_fwd_args *args)
{
    bool done = false;
    if (!args->cu_keys && !args->prefix && by_cudnn(queue, args->causal, false))
        TRY(attention_cudnn_fwd(queue, args, &done));
    queue->dev->counts.library_attention += done;
    return done ? ST_OK : cuda_attention_portable_fwd(queue, args);
}

status cuda_attention_bwd(stream *queue, const attention_bwd_args *args)
{
    bool done = false;
    if (!args->cu_keys && !args->prefix && by_cudnn(queue, args->causal, true))
        TRY(attention_cudnn_bwd(queue, args, &done));
    queue->dev->counts.library_attention += done;
    return done ? ST_OK : cuda_attention_portable_bwd(queue, args);
}
