/* step.h: one optimiser step as a story: rows -> micro-batches -> gradients -> update.
 *
 * A step is queued, and told when the device has done it. A backend may have steps under way beside
 * the one that is told next (backend_vtable.ahead; none on the CPU), so that it never waits for the
 * host: the host learns of a step's loss, and whether it was skipped, one step late. Nothing is
 * allocated by a step, and the host waits for nothing but what it is told. */
#ifndef TESSERA_TRAINER_RUN_STEP_H
#define TESSERA_TRAINER_RUN_STEP_H

#include "trainer/plan/received.h"
#include "trainer/run/session.h"

/* What a step did, for the log and the accounts. Sums over its micro-batches and over all ranks;
 * samples, digests, waiting and what begins with own_ are of this rank. */
typedef struct step_report {
    int64_t step; /* from 1 */
    double loss;  /* mean over target weights, without the auxiliary loss */
    double aux;   /* of the last micro-batch; 0 if off */
    double weight;
    double grad_norm, lr;
    double group_norm[GROUP_COUNT]; /* the gradient's norm by group */
    bool skipped;
    bool stop;                    /* of several ranks: one was asked to stop before it was queued */
    int64_t tokens, row_capacity; /* real tokens; rows * seq_len */
    int64_t patches, documents, images, targets;
    int64_t rows;
    /* tokens that ops ran on, padding included; device_batch.feature_rows */
    int64_t own_tokens, own_features;
    /* predicted time of the rows of the dearest consumer over the mean one (proto/assign.h); and
     * among ranks that share rows, the dearest's part of causal attention and of the vision tower
     * over the mean part, the worst of the micro-batches; 1: even */
    double balance, own_context_balance, own_vision_balance;
    int64_t cost; /* predicted time of this rank's rows, then of all consumers */
    /* [n_samples] ids in stream order; the session's, until a step that is queued needs the place:
     * the one after those under way */
    const uint64_t *sample;
    int64_t n_samples;
    flops flops; /* by real documents and grids */
    /* From where the device could begin on the step's first batch to where that was there: by the
     * device's clock, so what the host waits for while it is busy with the step before is none. */
    int64_t input_ns;
    /* Without rows: of the wait for the first batch only as long as the device stood too; of later
     * ones all, so at most. Of several ranks the longest of any, of the steps told since the one
     * before was queued: what a rank waited is known behind its step. */
    int64_t wait_ns;
    hash128 rows_digest;    /* chain over the rows' digests */
    hash128 samples_digest; /* of the ids, 8 bytes little-endian each */
    const char *cursor;     /* of the stream behind its last row; as sample */
    /* [L, E] rows that each expert got of the last micro-batch; NULL without experts; as sample */
    const int32_t *expert_count;
    /* of a gradient that is not finite: on which rank, in which layer (nonfinite.h); the session's,
     * until there is another such step. Else NULL */
    const char *where;
} step_report;

/* Queues the step: after it, values are those behind it once the device gets there. ST_END when the
 * stream has ended before the step's first row.
 *
 * A rank whose rows fail (the daemon has gone for good, a row is damaged, a signal came while it
 * waited) still makes the step's calls, which the others wait in: with empty rows, and a weight of
 * minus infinity. All ranks learn from the sum that the step is void and change nothing. From the
 * first on all steps of such a session are. A stream that ends inside a step is such a failure: the
 * daemon completes the last step with empty rows. */
WARN_UNUSED status step_queue(session *s, int64_t step);
/* Steps queued and not told. At most 1 + ahead may be. */
int64_t step_under_way(const session *s);
/* The oldest of them; waits for it. Of a void one why this rank's rows failed, ST_STOPPED, or
 * ST_UNAVAILABLE where another's did; *out has its stop. */
WARN_UNUSED status step_told(session *s, step_report *out);
/* The last step told was void: values are those of the step before it. */
bool step_is_void(const session *s);
/* Queued and told. */
WARN_UNUSED status step_run(session *s, int64_t step, step_report *out);
/* What this rank worked on in it, for the formula of received bytes; without the slots of experts,
 * which a caller counts or takes as even. */
received_work step_received_work(const session *s, const step_report *step);

/* Called by session_open and session_close. */
WARN_UNUSED status step_open(session *s);
void step_close(session *s);

#endif
