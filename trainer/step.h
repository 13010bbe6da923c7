/* step.h: one optimiser step as a story: rows -> micro-batches -> gradients -> update. */
#ifndef TESSERA_TRAINER_STEP_H
#define TESSERA_TRAINER_STEP_H

#include "trainer/session.h"

/* What a step did, for the log and the accounts. Sums over its micro-batches. */
typedef struct step_report {
    int64_t step; /* from 1 */
    double loss;  /* mean over target weights, without the auxiliary loss */
    double aux;   /* of the last micro-batch; 0 if off */
    double weight;
    double grad_norm, lr;
    double group_norm[GROUP_COUNT]; /* the gradient's norm by group */
    bool skipped;
    int64_t tokens, row_capacity; /* real tokens; rows * seq_len */
    int64_t patches, documents, images, targets;
    int64_t rows;
    const uint64_t
        *sample; /* [n_samples] ids in stream order; the session's, until the next step */
    int64_t n_samples;
    flops flops; /* by real documents and grids */
    int64_t wait_ns;
    hash128 rows_digest;    /* chain over the rows' digests */
    hash128 samples_digest; /* of the ids, 8 bytes little-endian each */
} step_report;

/* ST_END when the stream has ended before the step's first row. A stream that ends inside a step is
 * an error: the daemon completes the last step with empty rows. */
WARN_UNUSED status step_run(session *s, int64_t step, step_report *out);

#endif
