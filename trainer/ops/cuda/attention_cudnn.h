/* SPDX-License-Identifier: Apache-2.0 */
/* attention_cudnn.h: attention by cuDNN's fused kernels. Used only inside ops/cuda. */
#ifndef TESSERA_TRAINER_OPS_CUDA_ATTENTION_CUDNN_H
#define TESSERA_TRAINER_OPS_CUDA_ATTENTION_CUDNN_H

#include "trainer/ops/attention.h"

/* Queue a call of attention on cuDNN. *out_done is false, with ST_OK, if nothing was queued and
 * our own kernels must do it: the device has no cuDNN or was told not to use it; the GPU is older
 * than sm_90; widths or addresses are such as cuDNN does not take; too many of the blocks it would
 * launch would be empty; a deterministic backward would need too much memory; or it has no engine
 * for the shape. The log tells the first case of each such reason. ST_UNAVAILABLE if choices are
 * strict (device/choices.h) and the shape is why, unless it is for empty blocks. */
WARN_UNUSED status attention_cudnn_fwd(stream *stream, const attention_fwd_args *args,
                                       bool *out_done);
WARN_UNUSED status attention_cudnn_bwd(stream *stream, const attention_bwd_args *args,
                                       bool *out_done);

#endif
