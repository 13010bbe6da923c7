/* SPDX-License-Identifier: Apache-2.0 */
/* kernel_stuck.c: the implementation of kernel_stuck.h. */
#include "trainer/device/kernel_stuck.h"

static status grouped_failed(const kernel_stuck *stuck, int code, const char *text)
{
    static const char *const mode[] = {"forward", "dgrad", "wgrad"};
    return FAIL(
        ST_BAD_DEVICE,
        "the experts' kernel (grouped_hopper, %s) waited in block %d for stage %d to become "
        "%s, phase %d, which never came; training.experts: portable does without it (CUDA "
        "error %d, %s)",
        mode[stuck->kernel - STUCK_GROUPED], stuck->block, stuck->barrier / 2,
        stuck->barrier % 2 ? "full" : "empty", stuck->phase, code, text);
}

status kernel_stuck_failed(const kernel_stuck *stuck, const char *seen_at, int code,
                           const char *text)
{
    if (stuck->kernel >= STUCK_GROUPED && stuck->kernel < STUCK_MEETING)
        return grouped_failed(stuck, code, text);
    if (stuck->kernel == STUCK_MEETING)
        return FAIL(
            ST_BAD_DEVICE,
            "the kernel in which ranks meet (peers_meet) waited for rank %d of its group in "
            "turn %d, phase %d; that rank never came, and nothing ended the wait; "
            "comm.expert_exchange: host does without it (CUDA error %d, %s)",
            stuck->block, stuck->barrier, stuck->phase, code, text);
    return FAIL(ST_BAD_DEVICE, "work queued on the GPU, seen at %s: CUDA error %d, %s", seen_at,
                code, text);
}
