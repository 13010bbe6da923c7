/* memory_gpu.h: what of a GPU's memory the trainer asks nobody for and needs all the same: the
 * driver's context, the libraries' kernels, the block that ops work in, captured steps, NCCL's
 * buffers.
 *
 * Planning figures, each with its reason in memory_gpu.c. Only the workspace follows from shapes;
 * the others are to be set by one run of `tests/gpu memory`, which measures each beside its plan.
 */
#ifndef TESSERA_TRAINER_PLAN_MEMORY_GPU_H
#define TESSERA_TRAINER_PLAN_MEMORY_GPU_H

#include "trainer/model/qwen3vl.h"

typedef struct memory_gpu {
    int64_t context, libraries;
    int64_t workspace; /* one block, reserved before step 1 (backend_vtable.reserve) */
    int64_t graphs;
    int64_t nodes; /* of the graphs; no memory of their own */
    int64_t ranks; /* what several ranks take for their collectives */
} memory_gpu;

/* The steps that are captured: their shapes, and how many buffers batches come in. */
typedef struct memory_steps {
    const batch_caps *caps; /* [n] borrowed; of a micro-batch, longest and frame where known */
    int n, buffers;
} memory_steps;

/* o: of the model; multiprocessors: of the GPU. */
void memory_gpu_plan(const model_dims *d, const model_options *o, const memory_steps *s,
                     int multiprocessors, memory_gpu *out);
int64_t memory_gpu_total(const memory_gpu *m);

/* Calls of ops, copies and zeroings in one micro-step of so many targets. */
int64_t memory_gpu_calls(const model_dims *d, const model_options *o, int64_t targets);

#endif
