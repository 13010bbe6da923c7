/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_stuck.h: what a kernel leaves behind when it gives up a wait that will never end, and how
 * that becomes an error. For the kernels (ops/cuda/waits.cuh) and the devices that run them. */
#ifndef TESSERA_TRAINER_DEVICE_KERNEL_STUCK_H
#define TESSERA_TRAINER_DEVICE_KERNEL_STUCK_H

#include <stdint.h>

#include "common/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which kernel gave up: the experts' is STUCK_GROUPED plus its mode (GROUPED_* of gemm.h). */
enum { STUCK_NOWHERE, STUCK_GROUPED, STUCK_MEETING = STUCK_GROUPED + 3 };

/* A kernel writes it into pinned memory, which can be read after the kernel has trapped. */
typedef struct kernel_stuck {
    int32_t kernel;  /* STUCK_* */
    int32_t block;   /* experts: of the grid. Meeting: the rank of its group that did not come */
    int32_t barrier; /* experts: 2 x stage, + 1 if the stage was to become full, not empty.
                        Meeting: its turn */
    int32_t phase;   /* experts: the parity. Meeting: MEET_* of peers.h */
} kernel_stuck;

/* What became of work that failed with the error `code`, `text` of CUDA, seen at the call
 * `seen_at`: ST_BAD_DEVICE; its note names the wait in *stuck, if there is one. */
WARN_UNUSED status kernel_stuck_failed(const kernel_stuck *stuck, const char *seen_at, int code,
                                       const char *text);

#ifdef __cplusplus
}
#endif

#endif
