/* SPDX-License-Identifier: Apache-2.0 */
/* session_parts.h: the parts of a session, opened by session.c in this order. Internal to it. */
#ifndef TESSERA_TRAINER_RUN_SESSION_PARTS_H
#define TESSERA_TRAINER_RUN_SESSION_PARTS_H

#include "trainer/run/session.h"

/* ---- device ---- */

/* Opens the device and its stream, and shows the device to the engine of the ranks. Must come
 * before the mesh makes its groups. */
WARN_UNUSED status session_device(session *run);
/* Finds whether nothing of a step is to be captured, as is known before there are activations: an
 * option says so, the ranks are stages of a pipeline, they exchange expert slots through the host
 * since an option says so or since they do not reach each other's memory, or no steps are made at
 * all. All ranks call it. */
WARN_UNUSED status session_uncaptured(const session *run, bool *out);
/* Turns on the capture of steps as graphs, as far as cuda_graph.scope, the layout and the trial
 * (session_parts.h) allow it, and writes session.choices, since by now all are made. The ledger of
 * collectives counts captured calls each time their graph runs. */
WARN_UNUSED status session_capture(session *run);

/* Sets session->endpoint, for the rank's place in the mesh. CONFIG if prepd.rank_endpoints leaves a
 * data-parallel rank out; then all ranks fail, with the same words. */
WARN_UNUSED status session_endpoint(session *run);

/* ---- model and values ---- */

/* Reads the model's dimensions and makes the registry of parameters: which are trained, and which
 * part of them this rank holds. */
WARN_UNUSED status session_model(session *run);
/* Allocates the parameters and gives them their values: those of the checkpoint session->from,
 * those of weight files, or new ones drawn from training.seed. */
WARN_UNUSED status session_values(session *run);

/* ---- streams of rows, and the shapes that their micro-batches have ---- */

/* Opens session->train and keeps what checkpoints record of it (session->stream_options,
 * session->recording). ST_CONFIG if a run that goes on would get another stream than before,
 * ST_BAD_INPUT if its cursor does not point at the row after those that were trained. */
WARN_UNUSED status session_train_stream(session *run);
/* Reads from WELCOME how long rows are and how many there are, and finds the largest capacities
 * that a micro-batch may need, of the train stream and of held-out rows: sets seq_len, stream_rows,
 * buckets and cap. ST_PROTOCOL if no row can have these. */
WARN_UNUSED status session_shapes(session *run);

/* ---- the trial before step 1 ----
 *
 * The device's ways of doing a step (device/choices.h) are tried in the shapes of this run, and if
 * one fails on any rank, all ranks take the next. An evaluation has a trial too, of the forward
 * passes only. */

/* Settles run->device->choices, the same on all ranks, which all call it after the shape buckets
 * are known and before step 1. Rank 0 reports every fallback in one warning, with the rank that
 * needed it and the cause. On a device that has no choices it does nothing.
 *
 * ST_NO_MEMORY: a way found too little memory, which is no reason for another. Otherwise the
 * device's own answer if the last way fails too. */
WARN_UNUSED status trial_run(session *run);

#endif
