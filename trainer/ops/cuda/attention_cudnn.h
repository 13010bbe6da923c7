/* attention_cudnn.h: attention by cuDNN's fused kernels. Internal to ops/cuda. */
#ifndef TESSERA_OPS_CUDA_ATTENTION_CUDNN_H
#define TESSERA_OPS_CUDA_ATTENTION_CUDNN_H

#include "trainer/ops/attention.h"

/* Whether cuDNN is asked for this call: a GPU from sm_90 on, widths and addresses it takes, few
 * enough empty blocks, a backward that fits its memory where it must be deterministic. */
bool attention_cudnn_takes(const stream *s, const attention_fwd_args *a);
bool attention_cudnn_takes_bwd(const stream *s, const attention_bwd_args *a);

/* out_done false with ST_OK: it has no engine for the shape, and nothing was queued. */
WARN_UNUSED status attention_cudnn_fwd(stream *s, const attention_fwd_args *a, bool *out_done);
WARN_UNUSED status attention_cudnn_bwd(stream *s, const attention_bwd_args *a, bool *out_done);

#endif
