/* trial.h: the trial before step 1: the device's ways of doing a step (device/choices.h) are tried
 * in the shapes of this run, and if one fails on any rank, all ranks take the next. An evaluation
 * has a trial too, of the forward passes only. */
#ifndef TESSERA_TRAINER_RUN_TRIAL_H
#define TESSERA_TRAINER_RUN_TRIAL_H

#include "trainer/run/session.h"

/* Settles run->device->choices, the same on all ranks, which all call it after the shape buckets
 * are known and before step 1. Rank 0 reports every fallback in one warning, with the rank that
 * needed it and the cause. On a device that has no choices it does nothing.
 *
 * ST_UNAVAILABLE, on all ranks: with training.strict, for the first fallback that is needed.
 * ST_NO_MEMORY: a way found too little memory, which is no reason for another. Otherwise the
 * device's own answer if the last way fails too. */
WARN_UNUSED status trial_run(session *run);

#endif
