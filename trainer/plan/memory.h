/* memory.h: the memory of one rank by region, known before any of it is taken (design section 5).
 *
 * One function of what the options ask for, what the rank holds of the model, the shapes that rows
 * come in and the device: memory_plan_make. `trainer plan`, `train`, the dry run, `--sweep` and
 * `activation_checkpoint.save: auto` all call it, so that they name the same figures. */
#ifndef TESSERA_TRAINER_PLAN_MEMORY_H
#define TESSERA_TRAINER_PLAN_MEMORY_H

#include "common/conf/conf.h"
#include "trainer/model/qwen3vl.h"
#include "trainer/plan/memory_gpu.h"
#include "trainer/plan/plan_device.h"

/* Bytes of one rank. */
typedef struct memory_plan {
    int stage;          /* of the pipeline, that this rank is of */
    int64_t parameters; /* master values, sharded */
    int64_t gradients, moments;
    int64_t weights;     /* compute weights beside them; 0 where they are the same */
    int64_t gathered;    /* units of several ranks, whole while they are used; their gradients */
    int64_t activations; /* with scratch, without windows */
    int64_t window;      /* what ranks that share experts leave with each other (exchange.h) */
    int64_t staging;     /* batches as they come over (batch/upload_ring.h) */
    int64_t answers;     /* generation during evaluations: kept keys and values, logits */
    memory_gpu gpu;      /* what the trainer does not ask for itself; 0 on the CPU */
    int64_t built;       /* host: batches being built, of whole rows too; pinned on a GPU */
    int64_t received;    /* host: rows that were received and are not wanted yet */
    int64_t snapshot;    /* host: of checkpoints that are written in the background */
    int64_t total;       /* of the device; on the CPU with the host's */
    model_regions parts; /* of activations and window */
} memory_plan;

/* What the options say of memory. A search for what fits changes them. */
typedef struct memory_options {
    int64_t rows;                  /* of a micro-batch */
    int64_t seq_len, patch_budget; /* of a row */
    int64_t ahead;                 /* rows received before they are wanted; 0: two micro-batches */
    recomputes recomputed;
    bool training;
    bool keeps;   /* checkpoints in the background */
    bool answers; /* held-out questions are answered in the model's own words */
    double router_aux_coef;
    exchange_way exchange;
} memory_options;

/* What a rank holds of the model. */
typedef struct memory_rank {
    const model_dims *dims;
    const mesh *mesh; /* NULL: one rank */
    params_sizes size;
    bool tower_frozen, vision_frozen; /* as model_options has them */
    int64_t lora_rank;
    bool lora_experts;
} memory_rank;

/* Shapes that steps come in, which the stream tells. n 0: not known yet; then they are the widest
 * that the options allow, and a GPU's part is that of rows of one document. */
typedef struct memory_shapes {
    const batch_caps *caps; /* [n] borrowed, of micro-batches */
    int n;
    batch_caps largest; /* of all of them, held-out ones included */
} memory_shapes;

/* Capacities of a micro-batch of `rows` rows of seq_len tokens and patch_budget patches each. */
batch_caps memory_caps(int64_t rows, int64_t seq_len, int64_t patch_budget);
/* Rows a run holds before they are wanted: feed.ahead, or whole micro-batches twice. */
int64_t memory_rows_ahead(const conf *c, int64_t rows);
/* The way that a run of this configuration tries; where it turns out that it cannot, the other
 * takes no more. */
exchange_way memory_exchange_way(const conf *c, const layout *l);

/* As the configuration has them, for a device and micro-batches of `rows` rows. */
memory_options memory_options_of(const conf *c, const layout *l, const plan_device *on,
                                 bool training, int64_t rows);
/* Of a registry that is cut and shared as the rank's, or only sketched so (params_sketch.h). */
WARN_UNUSED status memory_rank_of(params *own, const model_dims *d, const plan_device *on,
                                  bool training, memory_rank *out);
WARN_UNUSED status memory_plan_make(const memory_options *o, const memory_rank *r,
                                    const memory_shapes *z, const plan_device *on,
                                    memory_plan *out);

#endif
