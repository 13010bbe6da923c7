/* SPDX-License-Identifier: Apache-2.0 */
/* step.h: one optimiser step: rows -> micro-batches -> gradients -> update of the values.
 *
 * A step is queued first; its results are read later. step_queue hands all of its work to the device; step_wait
 * waits until the device has done that work and returns what came of it. A backend may have several
 * steps under way at once (backend_vtable.ahead: 1 on CUDA, 0 on the CPU), so that the device never
 * waits for the host. The price is that the host learns of a step's loss, and of a skipped update,
 * one step late.
 *
 * A step allocates nothing on the device, and the host waits only for rows and in step_wait. */
#ifndef TESSERA_TRAINER_RUN_STEP_H
#define TESSERA_TRAINER_RUN_STEP_H

#include "trainer/model/params/unit_order.h"
#include "trainer/plan/received.h"
#include "trainer/run/session.h"

/* What a step did, for the log line and the ledger. Numbers are sums over the step's micro-batches
 * and over all ranks (step_rows.c lists what the ranks add up), except samples, digests and the
 * members that begin with own_, which are this rank's alone. */
typedef struct step_report {
    int64_t step;         /* the first is 1 */
    double loss;          /* mean over target weights, without the router's auxiliary loss */
    double aux;           /* auxiliary loss of the last micro-batch; 0 when it is off */
    double weight;        /* sum of the target weights; not above 0: the step had no targets */
    double grad_norm, lr; /* the norm is taken before clipping */
    double group_norm[GROUP_COUNT]; /* the gradient's norm by parameter group */
    bool skipped; /* the update was skipped: no targets, or a gradient that is not finite */
    bool stop;    /* some rank had been asked to stop before it queued this step */
    /* With optimizer.in_backward: the unit whose gradient was not finite (-1: none), and if others
     * had been updated by then, so that the step is partial, their names ("head to layer 31"), else
     * "". */
    int stopped_at;
    char updated[UNIT_RANGE];
    int64_t tokens, row_capacity; /* real tokens; rows * seq_len */
    int64_t patches, documents, images, targets;
    int64_t pairs; /* documents that have targets: questions with their answers */
    int64_t rows;
    /* tokens that ops ran on, padding included; and device_batch.feature_rows */
    int64_t own_tokens, own_features;
    /* How unevenly work was spread; 1 is even. balance: predicted time (proto/row/assign.h) of the
     * slowest consumer's rows over the mean of all consumers. The other two compare the ranks that
     * share rows: the largest part of causal attention, and of the vision tower, over the mean
     * part, in the worst micro-batch. balance is 0 for a single rank. */
    double balance, own_context_balance, own_vision_balance;
    /* Predicted time of the step's rows: of this rank's while it is queued, of all consumers' once
     * it has finished. */
    int64_t cost;
    /* [n_samples] sample ids in stream order. The session owns them; they stay valid until
     * step_queue has been called once for every step that may be under way. */
    const uint64_t *sample;
    int64_t n_samples;
    flops flops; /* of real documents and grids, without padding */
    /* Time on the device's own clock from the moment it could have begun the step's first
     * micro-batch to the moment that batch had arrived. Time in which the host waits while the
     * device is still busy with the step before does not count. */
    int64_t input_ns;
    /* Time without rows. The wait for the first micro-batch counts only as far as the device stood
     * idle with it (input_ns); waits for later ones count whole, so this is an upper bound. With
     * several ranks it is the longest wait of any rank, taken over the steps finished since the step
     * before was queued, because a rank knows only after a step how long it waited in it. */
    int64_t wait_ns;
    hash128 rows_digest;    /* chain over the digests of the rows */
    hash128 samples_digest; /* XXH3-128 of the ids, 8 bytes little-endian each */
    const char *cursor;  /* where the stream continues after the step's last row; lives as long as
                            `sample` */
    int64_t bad_samples; /* that this rank knows of */
    /* [layers, experts] rows that each expert was given of the last micro-batch; NULL for a model
     * without experts; lives as long as `sample` */
    const int32_t *expert_count;
    /* [unit_count] with optimizer.in_backward: by what the next step estimates the norm that it is
     * clipped by (optimizer_in_backward); else NULL; lives as long as `sample` */
    const double *unit_share;
    /* After a gradient that is not finite: a text that names the rank and the layer it came from
     * (step_parts.h). The session owns it until the next such step. NULL after any other step. */
    const char *where;
} step_report;

/* Queues step number `step`: once the device has reached its end, the values are those after the
 * update. Returns ST_END when the stream has ended before the step's first row.
 *
 * A rank may find that it has no more rows: the daemon has gone for good, a row is damaged, or a
 * signal came while the rank waited. The other ranks wait for it in the step's collectives, so it
 * takes part in them all the same, with empty rows and a weight of minus infinity. The sum of the
 * weights tells every rank that the step is void, and none of them changes a value. All later steps
 * of such a session are void too. A stream that ends inside a step counts as such a failure,
 * because the daemon completes the last step of a stream with empty rows. */
WARN_UNUSED status step_queue(session *run, int64_t step);
/* How many steps are queued and not yet waited for; at most 1 + backend_vtable.ahead. */
int64_t step_under_way(const session *run);
/* Waits for the oldest step under way and reports it. For a void step the status says why this rank
 * has no rows; if it was another rank that had none, ST_STOPPED if a rank was asked to stop and
 * ST_UNAVAILABLE otherwise. *out is filled in either case. */
WARN_UNUSED status step_wait(session *run, step_report *out);
/* True if the last finished step was void: the values are those after the step before it. */
bool step_is_void(const session *run);
/* step_queue and step_wait in one call. */
WARN_UNUSED status step_run(session *run, int64_t step, step_report *out);
/* What this rank worked on in a step, as input for the formula of received bytes (plan/received.h).
 * It lacks the expert slots, which the caller counts or assumes to be even. */
received_work step_received_work(const session *run, const step_report *step);

/* Memory for the steps under way; called by session_open and session_close. */
WARN_UNUSED status step_open(session *run);
void step_close(session *run);

#endif
