/* no_cudnn.c: the harness has no cuDNN: attention.c takes our own kernels. */
#include "trainer/ops/cuda/attention_cudnn.h"

bool attention_cudnn_takes(const stream *s, const attention_fwd_args *a)
{
    (void)s;
    (void)a;
    return false;
}

bool attention_cudnn_takes_bwd(const stream *s, const attention_bwd_args *a)
{
    (void)s;
    (void)a;
    return false;
}

status attention_cudnn_fwd(stream *s, const attention_fwd_args *a, bool *out_done)
{
    (void)s;
    (void)a;
    *out_done = false;
    return FAIL(ST_UNAVAILABLE, "no cuDNN");
}

status attention_cudnn_bwd(stream *s, const attention_bwd_args *a, bool *out_done)
{
    (void)s;
    (void)a;
    *out_done = false;
    return FAIL(ST_UNAVAILABLE, "no cuDNN");
}
