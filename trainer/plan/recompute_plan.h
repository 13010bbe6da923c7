/* recompute_plan.h: activation checkpointing of a configuration: what each tower computes again,
 * chosen where the options leave it open, and what that costs.
 *
 * `selective` with `op` keeps the outputs of expensive ops. With `save: auto` those are kept that
 * take longest to compute per byte, by the shipped rates of an H200 and the plan's row
 * (row_work.h), as many as memory.limit of the device holds by its plan; the last one in as many
 * layers as do. It is a function of the input alone: ranks that ask with one device and one set of
 * shapes choose alike. */
#ifndef TESSERA_TRAINER_PLAN_RECOMPUTE_PLAN_H
#define TESSERA_TRAINER_PLAN_RECOMPUTE_PLAN_H

#include "trainer/model/recompute.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/layout_plan.h"

/* rows: of a micro-batch. */
WARN_UNUSED status recompute_plan_of(const plan_input *in, int64_t rows, recomputes *out);
/* The same with a mode of its own (AC_NONE ..) in place of the options'; selective: op. */
WARN_UNUSED status recompute_plan_with(const plan_input *in, int64_t rows, int mode,
                                       recomputes *out);
/* Whether the options leave anything open, so that the device decides. */
bool recompute_is_open(const conf *c);

enum { RECOMPUTE_TEXT_MAX = 96 };
/* "none", "full", or what selective keeps: "selective: keeps proj, attention in 21 layers". */
const char *recompute_plan_text(const recompute *r, char text[RECOMPUTE_TEXT_MAX]);

/* FLOPs that the backward of a step computes again; not useful ones. */
typedef struct recompute_flops {
    int64_t dense, experts, attention, vision_attention;
} recompute_flops;
/* f: forward of the step's rows, with these tokens and patches. */
void recompute_plan_count(const recomputes *r, const model_dims *d, const training_share *share,
                          const flops *f, int64_t tokens, int64_t patches, recompute_flops *out);
/* How many of n layers keep this kind. */
int64_t recompute_plan_kept(const recompute *r, int64_t n, unsigned kind);
/* Share of n layers, of which backward reaches `reached`, that compute this kind again. */
double recompute_plan_share(const recompute *r, int64_t n, double reached, unsigned kind);

#endif
