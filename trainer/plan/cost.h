/* cost.h: what a step of a layout is predicted to cost: FLOPs, bytes between ranks, time, MFU.
 *
 * Work is divided by rates (rates.h). What goes round a ring (gathers, reductions) enters a node
 * once, through the adapters of all ranks there that take part; tokens to experts cross by each
 * rank's own. Gathers and reductions of weights run beside the compute of their pass and cost what
 * is left over; everything else between ranks is waited for. A pipeline of P stages idles (P - 1)
 * of every M + P - 1 micro-steps. It is a prediction and is printed as one. */
#ifndef TESSERA_TRAINER_PLAN_COST_H
#define TESSERA_TRAINER_PLAN_COST_H

#include "trainer/model/recompute.h"
#include "trainer/optim/groups.h"
#include "trainer/parallel/mesh.h"
#include "trainer/plan/rates.h"
#include "trainer/plan/row_work.h"

typedef enum traffic_key {
    TRAFFIC_GATHER,    /* weights, before forward and again before backward */
    TRAFFIC_REDUCE,    /* gradients behind a layer's backward */
    TRAFFIC_REPLICATE, /* sums of gradient pieces over replicas, once per step */
    TRAFFIC_TENSOR,    /* sequence pieces into heads and experts, and back */
    TRAFFIC_CONTEXT,   /* keys and values, and their gradients */
    TRAFFIC_EXPERT,    /* tokens to experts and back */
    TRAFFIC_PIPELINE,  /* activations between stages */
    TRAFFIC_ROW,       /* its images' features among the ranks that share a row */
    TRAFFIC_KEYS
} traffic_key;

/* Received by one rank in one step; of a pipeline's stages the mean. */
typedef struct traffic {
    const char *name;
    mesh_group group;
    int64_t bytes;
    bool between_nodes;
    double seconds; /* of these bytes, beside nothing else */
} traffic;

typedef struct cost {
    row_kind row;
    flops flops; /* of a whole step, all ranks */
    traffic traffic[TRAFFIC_KEYS];
    /* seconds of a step, of one rank */
    double dense, experts, attention, vision_attention, memory, update;
    int64_t recomputed; /* FLOPs that backward computes again: not useful */
    double recompute;   /* its seconds, in the above too */
    double exposed;     /* between ranks, not hidden */
    double bubble;      /* of pipeline stages: filling, and waiting for the slowest */
    double step;
    double tokens_per_s; /* of one rank */
    double mfu;          /* useful, of RATE_PEAK */
} cost;

/* p: the registry after groups_apply. recomputed: of activation checkpointing. Bytes are those of
 * received.h, tokens, images and choices of experts shared out as evenly as can be. */
WARN_UNUSED status cost_of(const conf *c, const layout *l, const model_dims *d, const params *p,
                           const rates *r, const recomputes *recomputed, cost *out);
void cost_print(const cost *k, const layout *l, FILE *to);

#endif
