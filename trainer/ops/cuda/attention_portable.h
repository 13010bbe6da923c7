/* SPDX-License-Identifier: Apache-2.0 */
/* attention_portable.h: attention_fwd and attention_bwd of attention.h by our own kernels, for
 * calls that cuDNN does not do. Heads are at most 128 wide. See attention_fwd.cu and
 * attention_bwd.cu. */
#ifndef TESSERA_TRAINER_OPS_CUDA_ATTENTION_PORTABLE_H
#define TESSERA_TRAINER_OPS_CUDA_ATTENTION_PORTABLE_H

#include "trainer/ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

WARN_UNUSED status cuda_attention_portable_fwd(stream *stream, const attention_fwd_args *args);
WARN_UNUSED status cuda_attention_portable_bwd(stream *stream, const attention_bwd_args *args);

#ifdef __cplusplus
}
#endif

#endif
