/* SPDX-License-Identifier: Apache-2.0 */
/* attention_plans.h: the plans that a device has of cuDNN for attention, one for each shape. They
 * live as long as the device. Private to attention_cudnn.c. */
#ifndef TESSERA_TRAINER_OPS_CUDA_ATTENTION_PLANS_H
#define TESSERA_TRAINER_OPS_CUDA_ATTENTION_PLANS_H

#include "trainer/device/backend.h"
#include "trainer/ops/cuda/attention_graphs.h"

#ifdef TESSERA_CUDNN

typedef struct made_plan {
    attention_shape shape;
    bool backward, refused; /* refused: the library has no engine for this shape */
    int passed_over;        /* cudnn_target.passed_over */
    cudnn_plan plan;
} made_plan;

/* The list is attention_plans.c's; the handle runs the plans. */
typedef struct attention_plans {
    cudnnHandle_t handle;
    made_plan *list;
    int64_t n, capacity;
} attention_plans;

/* The device's plans, with the library's handle on this queue. ST_NO_MEMORY, ST_BAD_DEVICE. */
WARN_UNUSED status attention_plans_of(stream *queue, attention_plans **out);
/* Finds or makes the plan of a shape. *out is NULL if the library has no engine for it, which is an
 * error where choices are strict; that is remembered too. ST_INTERNAL: it is to be made while a
 * step is captured. */
WARN_UNUSED status attention_plan_for(stream *queue, attention_plans *all,
                                      const attention_shape *shape, bool backward,
                                      const cudnn_plan **out);

#endif

#endif
