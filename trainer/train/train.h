/* train.h: a run from its first step, or the one after its checkpoint, to its end: steps, the
 * ledger, lines, evaluations, checkpoints, in that order. */
#ifndef TESSERA_TRAINER_TRAIN_H
#define TESSERA_TRAINER_TRAIN_H

#include "common/conf/conf.h"
#include "trainer/parallel/world.h"
#include "trainer/plan/plan_device.h"

/* Everything a rank of trainer train does with these options. */
WARN_UNUSED status train_run(const conf *c, const world *w);

/* What options, model and recording refuse by themselves, of `there` ranks; nothing is opened or
 * written, so a launcher asks before it starts any. The plan of several ranks goes to stdout where
 * it is to be shown, and where their number is wrong, so that the refusal tells what they take.
 * on: whose memory it is against; NULL: the one that is here (plan_device_here). */
WARN_UNUSED status train_check(const conf *c, const plan_device *on, int there, bool shown);

/* JOB.DUMP_FOLDER/CHECKPOINT.FOLDER */
WARN_UNUSED status train_checkpoint_folder(const conf *c, char out[STATUS_PATH_MAX]);

#endif
