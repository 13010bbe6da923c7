/* SPDX-License-Identifier: Apache-2.0 */
/* recompute_plan.h: decides what activation checkpointing recomputes in each tower, if the
 * options leave that open, and works out what it costs.
 *
 * `selective` with `op` keeps the outputs of expensive ops. With `save: auto` it keeps as many
 * kinds as memory.limit of the device allows, beginning with those that take longest to compute per
 * byte, by the shipped rates of an H200 and the row that plans assume (row_work.h); the last kind
 * is kept in as many layers as fit. The choice is a function of the input alone, so ranks with the
 * same device and the same shapes choose alike. */
#ifndef TESSERA_TRAINER_PLAN_RECOMPUTE_PLAN_H
#define TESSERA_TRAINER_PLAN_RECOMPUTE_PLAN_H

#include "trainer/model/layers/recompute.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/layout_plan.h"

/* The lowest of `layers` layers that the backward pass reaches, of which it reaches the share
 * `reached`. */
int64_t recompute_plan_first_reached(int64_t layers, double reached);

/* Decides for micro-batches of `rows` rows. */
WARN_UNUSED status recompute_plan_of(const plan_input *in, int64_t rows, recomputes *out);
/* Sets the mode (AC_NONE ..). Selective means `op` with `save: auto`. */
void recompute_plan_set(conf *options, int mode);
/* The same as recompute_plan_of with another mode (AC_NONE ..) than the options have. */
WARN_UNUSED status recompute_plan_with(const plan_input *in, int64_t rows, int mode,
                                       recomputes *out);
/* True if the options leave anything open, so that the memory of the device decides. */
bool recompute_is_open(const conf *options);

enum { RECOMPUTE_TEXT_MAX = 96 };
/* Writes "none", "full", or what selective keeps, such as "selective: keeps proj, attention in 21
 * layers", and returns text. */
const char *recompute_plan_text(const recompute *tower, char text[RECOMPUTE_TEXT_MAX]);

/* FLOPs that the backward pass of a step recomputes, which are not useful ones. */
typedef struct recompute_flops {
    int64_t dense, experts, attention, vision_attention;
} recompute_flops;
/* forward: FLOPs of the forward pass over the step's rows, which have these tokens and patches.
 * degrees: whether ranks share experts, whose activations are then computed again in any case. */
void recompute_plan_count(const recomputes *recomputed, const layout *degrees,
                          const model_dims *dims, const training_share *share, const flops *forward,
                          int64_t tokens, int64_t patches, recompute_flops *out);
/* How many of `count` layers keep this kind (RECOMPUTE_QKV ..). */
int64_t recompute_plan_kept(const recompute *tower, int64_t count, unsigned kind);
/* The share of `count` layers that recompute this kind; the backward pass reaches the share
 * `reached` of them. */
double recompute_plan_share(const recompute *tower, int64_t count, double reached, unsigned kind);

#endif
