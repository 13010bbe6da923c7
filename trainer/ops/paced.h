/* paced.h: the work that a collective does on one rank's memory, at the pace of a link. The engine
 * that simulates the other ranks uses it (parallel/comm_simulated.h), so that such a run takes as
 * much time, and as much of the GPU, as real collectives would. */
#ifndef TESSERA_TRAINER_OPS_PACED_H
#define TESSERA_TRAINER_OPS_PACED_H

#include <stdbool.h>

#include "trainer/device/backend.h"

/* By the device's clock, nothing is written before wait_ns have passed, and the rest takes at least
 * span_ns, in even steps (CUDA: chunk by chunk of each block; CPU: only its end is held back). It
 * takes longer if the device cannot keep up. */
typedef struct link_pace {
    int64_t wait_ns, span_ns;
    int32_t blocks; /* at least 1; on CUDA each block has a multiprocessor to itself until all is
                       done */
} link_pace;

enum { PACED_RUNS = 16 }; /* runs of one call, at most */

/* y[i] = x[i mod x_bytes] for i < bytes; if x_bytes is 0, y becomes zeros. Any bytes. y may be x
 * if bytes equals x_bytes; otherwise they must not overlap, nor may the y of two runs. */
typedef struct paced_run {
    void *y;
    const void *x;
    int64_t bytes, x_bytes;
} paced_run;

typedef struct paced_copy_args {
    link_pace pace;
    int32_t n;
    paced_run run[PACED_RUNS];
} paced_copy_args;

/* y[i] = the sum over p < pieces of x[p n + i], for i < n, in rising p, in float, rounded once. The
 * type is act, or acc if `acc` is set. y may be one of the pieces of x. */
typedef struct paced_sum_args {
    link_pace pace;
    int64_t n;
    int32_t pieces;
    bool acc;
    const void *x;
    void *y;
} paced_sum_args;

#endif
