/* paced.h: what collectives do to one rank's memory, at the pace of a link: for the engine that
 * plays a rank without the others (parallel/comm_simulated.h).
 *
 * paced_copy: of each run y[i] = x[i mod x_bytes], i < bytes; x_bytes 0: zeros. Bytes of any kind.
 *             y may be x where bytes is x_bytes (moved onto itself); else they do not overlap, nor
 *             do the y of two runs.
 * paced_sum:  y[i] = sum of x[p n + i] over p < pieces, i < n, in rising p, in float, rounded once;
 *             act, or acc where it says so. y may be one of x's pieces.
 *
 * pace: by the device's clock nothing is written before wait_ns have passed, and the rest takes
 * span_ns at least, in even steps (CUDA: chunk by chunk of each block; CPU: its end alone). It
 * takes longer where the device does not get there. blocks: on CUDA each has a multiprocessor for
 * itself until all is done; 1 at least. */
#ifndef TESSERA_TRAINER_OPS_PACED_H
#define TESSERA_TRAINER_OPS_PACED_H

#include <stdbool.h>

#include "trainer/device/backend.h"

typedef struct link_pace {
    int64_t wait_ns, span_ns;
    int32_t blocks;
} link_pace;

enum { PACED_RUNS = 16 };

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

typedef struct paced_sum_args {
    link_pace pace;
    int64_t n;
    int32_t pieces;
    bool acc;
    const void *x;
    void *y;
} paced_sum_args;

#endif
