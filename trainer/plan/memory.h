/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h: predicts the memory of one rank by region, before any of it is allocated.
 *
 * memory_plan_make is the only place that adds this up. It is a function of what the options ask
 * for, what the rank holds of the model, the shapes that rows come in, and the device. `trainer
 * plan`, `train`, `--sweep` and `activation_checkpoint.save: auto` all call it, and so
 * agree on every figure.
 *
 * Part of a GPU's memory is not allocated by the trainer, but a run takes it all the same: the
 * driver's context, the libraries' kernels, captured steps, and NCCL's buffers. The figures for
 * these are set by a run of `tests/gpu memory`, which prints each beside its plan. */
#ifndef TESSERA_TRAINER_PLAN_MEMORY_H
#define TESSERA_TRAINER_PLAN_MEMORY_H

#include <stdint.h>

#include "common/conf/conf.h"
#include "trainer/model/qwen3vl.h"
#include "trainer/plan/plan_device.h"
#include "trainer/plan/row_work.h"

typedef struct memory_gpu {
    int64_t context, libraries;
    int64_t workspace; /* one block, reserved before step 1 (backend_vtable.reserve) */
    int64_t graphs;    /* captured steps */
    int64_t nodes;     /* a count, not bytes: the nodes of these graphs */
    int64_t ranks;     /* NCCL's buffers, and those of collectives over host values */
} memory_gpu;

/* The captured steps: the shapes of their micro-batches, and how many buffers these arrive in. */
typedef struct memory_steps {
    const batch_caps *caps; /* [count] borrowed; with longest and frame where they are known */
    int count, buffers;
} memory_steps;

/* use: where attention may run with cuDNN, whose backward pass decides the workspace.
 * multiprocessors: how many the GPU has. */
void memory_gpu_plan(const model_dims *dims, const model_options *options,
                     const memory_steps *steps, const attention_use *use, int multiprocessors,
                     memory_gpu *out);
int64_t memory_gpu_total(const memory_gpu *plan);

/* How many ops, copies and zeroings one micro-step with this many targets calls. */
int64_t memory_gpu_calls(const model_dims *dims, const model_options *options, int64_t targets);

/* Writes bytes as "43.4 GiB", "118.0 MiB" or "0.5 KiB", and returns out. */
enum { MEMORY_BYTES_TEXT = 32 };
const char *memory_bytes_text(int64_t bytes, char out[MEMORY_BYTES_TEXT]);

/* The regions of one rank, in bytes. */
typedef struct memory_plan {
    int stage;          /* the pipeline stage of this rank */
    int64_t parameters; /* master values, sharded */
    int64_t gradients;
    int64_t moments;     /* with memory.host moments: buffers of two units */
    int64_t weights;     /* compute weights; 0 where the master values serve as such */
    int64_t codes;       /* frozen matrices in 8 or 4 bits (model/params/quantised.h) */
    int64_t expanded;    /* where they are expanded, one at a time */
    int64_t uncoded;     /* what they would take as plain values; not part of the total */
    int64_t gathered;    /* FSDP units while they are gathered, and their gradients */
    int64_t activations; /* with scratch, without windows */
    int64_t window;      /* buffers through which ranks exchange expert slots (exchange.h) */
    int64_t staging;     /* micro-batches on the device (batch/upload_ring.h) */
    int64_t answers;     /* for generated answers: kept keys and values, logits */
    memory_gpu gpu;      /* what the driver and the libraries take; 0 on the CPU */
    /* host: moments and frozen weights that rest there, pinned for a GPU (memory.host) */
    int64_t resting_moments, resting_frozen;
    int64_t built;    /* host: micro-batches being built; pinned for a GPU */
    int64_t received; /* host: rows received ahead of their step */
    int64_t
        snapshot;  /* host: copies for checkpoints and for a crash (checkpoint/save/snapshot.h) */
    int64_t total; /* of the device; on the CPU it includes the host's regions */
    model_regions parts; /* what activations and window consist of */
} memory_plan;

/* What the options ask for. A search for what fits changes them. */
typedef struct memory_options {
    int64_t rows;                  /* of a micro-batch */
    int64_t seq_len, patch_budget; /* of a row */
    int64_t ahead;                 /* rows received ahead of their step; 0: two micro-batches */
    recomputes recomputed;
    bool training;
    int copies;        /* of values and moments on the host */
    bool keeps_frozen; /* .. with frozen values from the device (checkpoint/save/writer.h) */
    bool answers;      /* answers to held-out questions are generated */
    double router_aux_coef;
    exchange_way exchange;
    attention_use attention;
} memory_options;

/* What a rank holds of the model. */
typedef struct memory_rank {
    const model_dims *dims;
    const mesh *mesh; /* NULL: a single rank */
    params_sizes size;
    bool tower_frozen, vision_frozen; /* as in model_options */
    int64_t lora_rank;
    bool lora_experts, lora_dora;
} memory_rank;

/* The shapes of micro-batches, as announced by the stream. count = 0: not known yet. Then the plan
 * assumes the widest shapes that the options allow, and for the GPU's regions rows of one
 * document. */
typedef struct memory_shapes {
    const batch_caps *caps; /* [count] borrowed */
    int count;
    batch_caps largest; /* the maximum of all of them and of held-out micro-batches */
} memory_shapes;

/* Capacities of a micro-batch of `rows` rows of seq_len tokens and patch_budget patches each. */
batch_caps memory_caps(int64_t rows, int64_t seq_len, int64_t patch_budget);
/* How many rows a run receives ahead of their step, where a micro-batch has `rows`: two of them, and
 * at least ROWS_AHEAD. */
enum { ROWS_AHEAD = 4 };
int64_t memory_rows_ahead(int64_t rows);
/* The way in which a run with these options tries to exchange expert slots. If the run finds that
 * it cannot, the other way takes no more memory. */
exchange_way memory_exchange_way(const conf *options, const layout *layout);

/* The part of a plan that is kept on the host. */
static inline int64_t memory_resting(const memory_plan *plan)
{
    return plan->resting_moments + plan->resting_frozen;
}

/* What a rank takes of the host's memory. */
static inline int64_t memory_host(const memory_plan *plan)
{
    return memory_resting(plan) + plan->built + plan->received + plan->snapshot;
}

/* The options for a device and for micro-batches of `rows` rows. */
memory_options memory_options_of(const conf *options, const layout *layout, const plan_device *on,
                                 bool training, int64_t rows);
/* What a rank holds, from its registry, which may be cut for real or only sketched
 * (params.h). */
WARN_UNUSED status memory_rank_of(params *own, const model_dims *dims, const plan_device *on,
                                  bool training, memory_rank *out);
/* The plan. Fails only if the regions of the model cannot be laid out. */
WARN_UNUSED status memory_plan_make(const memory_options *options, const memory_rank *rank,
                                    const memory_shapes *shapes, const plan_device *on,
                                    memory_plan *out);

#endif
