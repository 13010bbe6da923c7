/* attention_cudnn.h: attention by cuDNN's fused kernels. Internal to ops/cuda. */
#ifndef TESSERA_TRAINER_OPS_CUDA_ATTENTION_CUDNN_H
#define TESSERA_TRAINER_OPS_CUDA_ATTENTION_CUDNN_H

#include "trainer/ops/attention.h"

/* out_done false with ST_OK: nothing was queued. The device has no cuDNN or was told to do without;
 * or it is not asked: a GPU before sm_90, widths and addresses it does not take, too many empty
 * blocks, a deterministic backward that needs too much memory; or it has no engine for the shape.
 * The first of each such reason is told in the log. */
WARN_UNUSED status attention_cudnn_fwd(stream *s, const attention_fwd_args *a, bool *out_done);
WARN_UNUSED status attention_cudnn_bwd(stream *s, const attention_bwd_args *a, bool *out_done);

#endif
