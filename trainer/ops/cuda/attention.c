/* attention.c: whose kernels do attention on CUDA: cuDNN's where the device has it and it takes the
 * shape and has an engine for it, else our own; so where queries are some of a segment's tokens,
 * which cuDNN's masks cannot say. */
#include "trainer/ops/cuda/attention_cudnn.h"
#include "trainer/ops/cuda/attention_portable.h"
#include "trainer/ops/table.h"

status cuda_attention_fwd(stream *s, const attention_fwd_args *a);
status cuda_attention_bwd(stream *s, const attention_bwd_args *a);

status cuda_attention_fwd(stream *s, const attention_fwd_args *a)
{
    bool done = false;
    if (!a->cu_keys)
        TRY(attention_cudnn_fwd(s, a, &done));
    return done ? ST_OK : cuda_attention_portable_fwd(s, a);
}

status cuda_attention_bwd(stream *s, const attention_bwd_args *a)
{
    bool done = false;
    if (!a->cu_keys)
        TRY(attention_cudnn_bwd(s, a, &done));
    return done ? ST_OK : cuda_attention_portable_bwd(s, a);
}
