/* SPDX-License-Identifier: Apache-2.0 */
/* groups.h: which parameters are trained, and with what learning rate and weight decay. The options
 * freeze.pattern and optimizer.groups decide.
 *
 * optimizer.groups is a list of rules, of which later ones win: "PATTERN [lr=X] [decay=X] [frozen];
 * ..". A pattern is a group of the registry (vision, merger, text, router, experts), or a tensor's
 * name with * and ?. freeze.pattern is applied last. The position table belongs to both vision and
 * merger: freezing either one freezes it, so that a frozen tower needs no backward.
 *
 * optimizer.states and training.master choose the types of states of the matrices that are trained,
 * but for routers; the others keep float32.
 *
 * With lora.rank, adapters are added to the registry first and everything else is frozen
 * (model/params/lora_params.h). */
#ifndef TESSERA_TRAINER_OPTIM_GROUPS_H
#define TESSERA_TRAINER_OPTIM_GROUPS_H

#include <stdio.h>

#include "common/conf/conf.h"
#include "trainer/model/params/lora_params.h"
#include "trainer/model/params/params.h"

/* The kind of adapters that the options ask for; rank 0: none. */
lora_kind groups_lora(const conf *options);
/* Applies the options to the registry. Call it before params_alloc. ST_CONFIG: a rule cannot be
 * read or matches nothing, or no parameter is left to train. */
WARN_UNUSED status groups_apply(const conf *options, params *registry);
/* Prints a line per set of parameters that are treated alike: how many tensors and parameters,
 * their rate and decay. */
void groups_print(const conf *options, const params *registry, FILE *to);

/* Which share of the work a training step does, for its FLOPs. Every share is from 0 to 1. */
typedef struct training_share {
    /* By group: the share of its matrices that are trained, and so have a weight gradient. */
    double wgrad[GROUP_COUNT];
    double head_wgrad, patch_wgrad; /* 1: the head, the patch embedding is trained */
    double adapters;     /* multiply-adds of adapters per multiply-add of the decoder's matrices */
    double text_dgrad;   /* the share of the decoder's layers that a gradient passes through */
    double vision_dgrad; /* the same for the vision tower's blocks */
    double merger_dgrad; /* 1: a gradient reaches the mergers */
} training_share;

/* Computes those shares from what is frozen. */
void groups_share(const params *registry, const model_dims *dims, training_share *out);
/* The useful FLOPs of a step: the forward of everything, and the backward of what is trained or
 * passed through. The step's FLOPs by part are in f. */
int64_t groups_training_flops(const flops *sum, const training_share *share);

#endif
