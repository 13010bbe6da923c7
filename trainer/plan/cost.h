/* cost.h: what a step of a layout is predicted to cost: FLOPs, bytes between ranks, time, MFU.
 *
 * Work is divided by rates (rates.h). What goes round a ring (gathers, reductions) enters a node
 * once, through the adapters of all ranks there that take part; tokens to experts cross by each
 * rank's own. Gathers and reductions of weights run beside the compute of their pass and cost what
 * is left over; everything else between ranks is waited for. A pipeline of P stages idles (P - 1)
 * of every M + P - 1 micro-steps. It is a prediction and is printed as one.
 *
 * Interleaved is what the schedule that is not built would take: stage p with runs p and P + p of 2
 * P of the decoder's, half as much to fill, 2 P - 1 borders in place of P - 1, and as even as one
 * run is; M has to be a multiple of P (README.md of parallel). */
#ifndef TESSERA_PLAN_COST_H
#define TESSERA_PLAN_COST_H

#include "trainer/model/recompute.h"
#include "trainer/optim/groups.h"
#include "trainer/parallel/mesh.h"
#include "trainer/plan/rates.h"

/* What a row is made of: documents of this length, each with one picture of this grid (patches; 0 =
 * text alone). */
typedef struct row_kind {
    int64_t seq_len, document;
    int32_t grid[3];
} row_kind;
/* VQAv2's mean sample (shared/facts: 313 tokens, a picture of 640 x 480) for formats with pictures,
 * one document per row for text. Without data.pack a row is one document: of its padding shape
 * buckets leave less than the document (padding of a bucket is not counted). */
row_kind row_kind_of(const conf *c, const model_dims *d);
/* Forward of one such row; training is left 0. */
void row_kind_flops(const row_kind *r, const model_dims *d, flops *out);
/* Pictures of a row. */
int64_t row_kind_images(const row_kind *r);
/* Bytes that element-wise work moves, forward and backward, of one token and decoder layer, and of
 * one patch and vision block. */
double cost_layer_bytes(const text_dims *t);
double cost_block_bytes(const vision_dims *v);
/* FLOPs of attention's backward that a device does over the forward's: five products to two, since
 * the scores are made again. Useful ones are counted twice the forward's. */
#define COST_ATTENTION_BACKWARD 2.5

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
    int64_t again;    /* FLOPs that backward computes again: not useful */
    double recompute; /* its seconds, in the above too */
    double exposed;   /* between ranks, not hidden */
    double bubble;    /* of pipeline stages: filling, and waiting for the slowest */
    double step;
    double interleaved;  /* the step were each stage two runs of layers; 0: it can not be */
    double tokens_per_s; /* of one rank */
    double mfu;          /* useful, of RATE_PEAK */
} cost;

/* p: the registry after groups_apply. again: of activation checkpointing. Bytes are those of
 * received.h, tokens, images and choices of experts shared out as evenly as can be. */
WARN_UNUSED status cost_of(const conf *c, const layout *l, const model_dims *d, const params *p,
                           const rates *r, const recomputes *again, cost *out);
void cost_print(const cost *k, const layout *l, FILE *to);

#endif
