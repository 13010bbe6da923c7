/* groups.h: which parameters are trained, at what rate and decay, from the options freeze.* and
 * optimizer.groups.
 *
 * optimizer.groups is a list of rules, later ones win: "PATTERN [lr=X] [decay=X] [frozen]; ..".
 * A pattern is a group of the registry (vision, merger, text, router, experts) or a tensor's name
 * with * and ?. freeze.* comes last. The position table belongs to vision and to merger: freezing
 * either freezes it, so that a frozen tower has no backward. With lora.rank adapters are added to
 * the registry and all else is frozen first (model/lora_params.h). */
#ifndef TESSERA_TRAINER_OPTIM_GROUPS_H
#define TESSERA_TRAINER_OPTIM_GROUPS_H

#include <stdio.h>

#include "common/conf/conf.h"
#include "trainer/model/params.h"

/* Before params_alloc. ST_CONFIG: a rule that is not understood or matches nothing, and where
 * nothing is left to train. */
WARN_UNUSED status groups_apply(const conf *c, params *p);
/* A line per set of parameters that are treated alike: counts, rate, decay. */
void groups_print(const conf *c, const params *p, FILE *to);

/* What of the work a step does, for its FLOPs: shares of 0 to 1 by group of matrices. */
typedef struct training_share {
    double wgrad[GROUP_COUNT]; /* of the group's matrices that are trained */
    double head_wgrad, patch_wgrad;
    double adapters;     /* multiply-adds of adapters for one of the decoder's matrices */
    double text_dgrad;   /* of the decoder's layers that a gradient passes through */
    double vision_dgrad; /* of the tower's blocks */
    double merger_dgrad; /* mergers are reached */
} training_share;

void groups_share(const params *p, const model_dims *d, training_share *out);
/* Useful FLOPs of a step: forward of everything; of what is trained or passed through, backward. */
int64_t groups_training_flops(const flops *f, const training_share *s);

#endif
