/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h: predicts what a step of a layout costs: FLOPs, bytes between ranks, time and MFU.
 *
 * Compute time is work divided by rates (rates.h). Collectives that go round a ring, which are
 * gathers and reductions, enter a node once, through the adapters of all ranks there that take
 * part; tokens go to experts through each rank's own adapter. Gathers and reductions of weights
 * overlap with the compute of their pass, and only what is left over costs time; everything else
 * between ranks is waited for. A pipeline of P stages is idle in P - 1 of every M + P - 1
 * micro-steps. The result is a prediction and is printed as one. trainer/plan/time.md explains the
 * rates and compares predictions with published runs. */
#ifndef TESSERA_TRAINER_PLAN_COST_H
#define TESSERA_TRAINER_PLAN_COST_H

#include "trainer/model/layers/recompute.h"
#include "trainer/optim/groups.h"
#include "trainer/parallel/mesh.h"
#include "trainer/plan/layout_plan.h"
#include "trainer/plan/rates.h"
#include "trainer/plan/row_work.h"

typedef enum traffic_key {
    TRAFFIC_GATHER,    /* weights, before the forward and again before the backward pass */
    TRAFFIC_REDUCE,    /* gradients, after a layer's backward pass */
    TRAFFIC_REPLICATE, /* sums of gradient pieces over replicas, once a step */
    TRAFFIC_TENSOR,    /* pieces of the sequence into heads and experts, and back */
    TRAFFIC_CONTEXT,   /* keys and values, and their gradients */
    TRAFFIC_EXPERT,    /* tokens to experts and back */
    TRAFFIC_PIPELINE,  /* activations between pipeline stages */
    TRAFFIC_ROW,       /* features of a row's images, among the ranks that share the row */
    TRAFFIC_KEYS
} traffic_key;

/* What one rank receives in a step; in a pipeline, the mean over the stages. */
typedef struct traffic {
    const char *name;
    mesh_group group;
    int ranks; /* of the group */
    int64_t bytes;
    bool between_nodes;
    double seconds; /* that these bytes take if nothing else is sent */
} traffic;

typedef struct cost {
    row_kind row;
    flops flops; /* of a whole step, on all ranks */
    traffic traffic[TRAFFIC_KEYS];
    /* seconds that one rank spends in a step; memory: element-wise work, update: the optimiser */
    double dense, experts, attention, vision_attention, memory, update;
    double adapters;       /* seconds of what adapters compute beside their matrices */
    int64_t adapter_flops; /* of that in the forward pass, on all ranks */
    rate_key text_backward, vision_backward; /* whose kernels do attention's backward pass */
    /* The experts run with the portable kernel, but the rate is that of another kernel. */
    bool untimed_experts;
    bool deterministic, in_backward;
    double other_step;  /* seconds of the step at the other setting of training.deterministic */
    int64_t recomputed; /* FLOPs that the backward pass recomputes; they are not useful */
    double recompute;   /* the seconds of these, which are part of those above */
    /* What rests on the host (memory.host): bytes of moments that move each way in a step, and of
     * frozen weights that come in its forward and its backward passes. */
    double host_moments, host_forward, host_backward;
    double host;         /* seconds that these take, both ways at once .. */
    double host_exposed; /* .. and of these, what no compute hides */
    double exposed;      /* seconds between ranks that no compute hides */
    double bubble;       /* seconds lost in a pipeline, by filling it and by its slowest stage */
    double step;         /* seconds of the whole step */
    double tokens_per_s; /* of one rank */
    double pairs_per_s;  /* questions with their answers, of all ranks */
    double pair_flops;   /* useful FLOPs of such a pair */
    double saving;       /* how many times more they would be without sharing */
    int64_t epoch_pairs; /* such pairs in an epoch; 0 where only the daemon knows */
    double epoch;        /* seconds of these */
    bool unknown_shares; /* samples share pictures, and how many do is not known */
    double mfu;          /* useful FLOP/s as a share of RATE_PEAK */
} cost;

/* params: the registry after groups_apply. recomputed: what activation checkpointing recomputes.
 * The bytes are those of received.h, if tokens, images and choices of experts are shared out
 * evenly. ST_CONFIG for a step whose FLOPs do not fit into 63 bits. */
WARN_UNUSED status cost_of(const conf *part, const layout *layout, const model_dims *dims,
                           const params *params, const rates *rates, const recomputes *recomputed,
                           cost *out);
/* Prints it as `trainer plan` does (cost_print.c). */
void cost_print(const cost *cost, const layout *layout, FILE *to);
/* Prints the remark that belongs to untimed_experts, if that is set. */
void cost_print_experts(bool untimed, FILE *to);

/* sweep.c: tries every valid product of degrees for `ranks` ranks, in each mode of activation
 * checkpointing, with the largest micro-batch that fits memory.limit of the input's device. All
 * other options are those of the input; its layout and shapes are not used. Prints the best `most`
 * of them. ST_CONFIG if nothing fits. */
WARN_UNUSED status sweep_layouts(const plan_input *in, int64_t ranks, const rates *rates, int most,
                                 FILE *to);

#endif
