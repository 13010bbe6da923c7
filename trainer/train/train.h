/* SPDX-License-Identifier: Apache-2.0 */
/* train.h: a run of trainer train, from its first step, or the one after its checkpoint, to its
 * end. Each step is followed by its line in the ledger, its log line, and an evaluation and a
 * checkpoint if these are due, in that order. */
#ifndef TESSERA_TRAINER_TRAIN_H
#define TESSERA_TRAINER_TRAIN_H

#include "common/conf/conf.h"
#include "trainer/parallel/world.h"

/* Runs everything that one rank of trainer train does. Ends when training.steps are done, the
 * stream has ended, or a signal was received; all three are ST_OK. `world` is borrowed.
 * profiled: the time of a step is measured call by call, and printed at the end. */
WARN_UNUSED status train_run(const conf *options, const world *job, bool profiled);

/* Refuses what options, model and recording make impossible for `there` ranks, of which `here` are
 * on this machine and share what must be shared of it. It opens no device
 * and writes nothing, so a launcher calls it before it starts any rank. With several ranks it
 * prints their plan to stdout if `shown`, and also if their number is wrong, so that the refusal
 * says what they would take on the device of this machine (plan_device_here). */
WARN_UNUSED status train_check(const conf *options, int there, int here, bool shown);

/* Writes job.dump_folder/checkpoint to out; ST_CONFIG if that path is too long. */
WARN_UNUSED status train_checkpoint_folder(const conf *options, char out[STATUS_PATH_MAX]);

#endif
