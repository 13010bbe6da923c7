/* memory_gpu.h: memory of a GPU that the trainer does not allocate itself but that a run takes all
 * the same: the driver's context, the libraries' kernels, the block of scratch memory that ops work
 * in, captured steps, and NCCL's buffers.
 *
 * These are planning figures, each with its reason in memory_gpu.c. Only the workspace follows from
 * the shapes. The others should be set by a run of `tests/gpu memory`, which measures each of them
 * and prints it beside its plan. */
#ifndef TESSERA_TRAINER_PLAN_MEMORY_GPU_H
#define TESSERA_TRAINER_PLAN_MEMORY_GPU_H

#include "trainer/model/qwen3vl.h"
#include "trainer/plan/attention_kernels.h"

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

#endif
