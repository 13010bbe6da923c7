/* memory.h: the device memory of a layout by region, known before anything is taken (design
 * section 5). trainer plan prints it, train prints it and refuses what memory.limit does not allow.
 */
#ifndef TESSERA_TRAINER_PLAN_MEMORY_H
#define TESSERA_TRAINER_PLAN_MEMORY_H

#include <stdio.h>

#include "common/conf/conf.h"
#include "trainer/plan/memory_gpu.h"
#include "trainer/model/qwen3vl.h"

typedef struct memory_plan {
    int64_t parameters, gradients, moments, activations; /* bytes; activations with scratch */
    int64_t window;   /* what ranks that share experts leave with each other (model/exchange.h) */
    int64_t gathered; /* units of several ranks, whole while they are used */
    int64_t staging;  /* batches as they come over (batch/upload_ring.h) */
    memory_gpu gpu;   /* what nobody asks for; 0 on the CPU */
    int64_t waiting;  /* host memory: rows received ahead, batches being built (pinned on a GPU) */
    int64_t answers;  /* generation during evaluations: kept keys and values, logits */
    int64_t snapshot; /* of checkpoints written in the background: host memory */
    int64_t total;    /* of the device; on the CPU with the host's */
} memory_plan;

/* Capacities of a micro-batch of `rows` rows of seq_len tokens and patch_budget patches each. */
batch_caps memory_caps(int64_t rows, int64_t seq_len, int64_t patch_budget);

/* Shapes that steps come in. n 0: not known; then a GPU's part is that of rows of one document. */
typedef struct memory_shapes {
    const batch_caps *caps; /* [n] borrowed */
    int n;
    int64_t rows;  /* of a micro-batch */
    int64_t ahead; /* rows received before they are wanted; 0: two micro-batches */
} memory_shapes;

/* Rows a run holds before they are wanted: feed.ahead, or whole micro-batches twice. */
int64_t memory_rows_ahead(const conf *c);
/* Of a step's micro-batches; all 0 of a backend without overhead. */
void memory_plan_gpu(const model_dims *d, const model_options *o, const memory_shapes *z,
                     const backend_vtable *backend, memory_gpu *out);
/* n_params values stored, n_trained of them with gradients and moments where o says training. */
WARN_UNUSED status memory_plan_make(const model_dims *d, int64_t n_params, int64_t n_trained,
                                    const model_options *o, const memory_shapes *z,
                                    const backend_vtable *backend, memory_plan *out);
/* Adds what checkpoints in the background take (checkpoint.async_mode). */
void memory_plan_add_snapshot(memory_plan *p, int64_t n_params, int64_t n_trained,
                              const backend_vtable *backend);
/* Adds what answering held-out questions takes (generate/generate.h), of rows of seq_len tokens, on
 * a rank of m (NULL: of one). */
void memory_plan_add_answers(memory_plan *p, const model_dims *d, const mesh *m, int64_t seq_len,
                             const backend_vtable *backend);
/* Adds the buffers that units are gathered into (params_size). */
void memory_plan_add_gathered(memory_plan *p, int64_t bytes);
void memory_plan_print(const memory_plan *p, FILE *to);

/* A layout to be judged: what memory_plan_make takes, and the row it is made of. */
typedef struct memory_layout {
    const model_dims *dims;
    const backend_vtable *backend;
    int64_t n_params, n_trained; /* stored here (params_size) */
    int64_t gathered;            /* bytes */
    const mesh *mesh;            /* NULL: one rank */
    int64_t rows, seq_len, patch_budget;
    const batch_caps *buckets; /* [n_buckets] borrowed; none: not known */
    int n_buckets;
    int64_t ahead; /* as memory_shapes */
    bool training;
    recomputes again;
    bool keeps;   /* checkpoints in the background */
    bool answers; /* held-out questions in the model's own words (generate_wanted) */
    bool tower_frozen, vision_frozen;
    int64_t lora_rank; /* as model_options */
    bool lora_experts;
    double router_aux_coef;
    exchange_way exchange;
} memory_layout;

/* The way that a run of this configuration tries; where it turns out that it can not, the other
 * takes no more. */
exchange_way memory_exchange_way(const conf *c, const layout *l);

WARN_UNUSED status memory_layout_plan(const memory_layout *l, memory_plan *out);
/* ST_CONFIG if the layout takes more than `bytes`; the text names the smallest change that fits, in
 * this order: selective activation checkpointing, full, fewer rows in a micro-batch, shorter rows.
 */
WARN_UNUSED status memory_layout_check(const memory_layout *l, double bytes);

#endif
