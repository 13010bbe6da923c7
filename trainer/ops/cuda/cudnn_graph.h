/* cudnn_graph.h: a graph of operations for cuDNN, written down step by step, and the plan it
 * becomes. Four dimensions everywhere: batch, head, row, column.
 *
 * Failures are kept: after the first, calls do nothing, and cudnn_graph_plan tells it. So a graph
 * reads as its formulas. */
#ifndef TESSERA_TRAINER_OPS_CUDA_CUDNN_GRAPH_H
#define TESSERA_TRAINER_OPS_CUDA_CUDNN_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#ifdef TESSERA_CUDNN

#include "trainer/device/cudnn.h"

enum {
    CUDNN_DIMS = 4,
    CUDNN_MADE = 320,
    CUDNN_OPS = 48,
    CUDNN_ALIGNMENT = 16 /* bytes; declared of every tensor, so of every pointer handed over */
};

/* A tensor of the graph. */
typedef struct cudnn_tensor {
    cudnnBackendDescriptor_t it;
    int64_t dim[CUDNN_DIMS];
} cudnn_tensor;

typedef struct cudnn_graph {
    status st;
    int n_made, n_ops;
    int64_t next_uid; /* of tensors without one of the caller's */
    cudnnBackendDescriptor_t made[CUDNN_MADE], op[CUDNN_OPS];
} cudnn_graph;

typedef struct cudnn_layout {
    cudnnDataType_t type;
    int64_t dim[CUDNN_DIMS], stride[CUDNN_DIMS]; /* elements */
    const cudnn_tensor *ragged; /* first elements of each batch entry [batch + 1]; NULL: strided */
} cudnn_layout;

enum { CUDNN_FIRST_UID = 1000 }; /* the caller's are below */

/* Of the caller's memory, handed over by uid at each execution. */
cudnn_tensor cudnn_graph_tensor(cudnn_graph *g, int64_t uid, const cudnn_layout *l);
/* One number, given at each execution in host memory. */
cudnn_tensor cudnn_graph_number(cudnn_graph *g, int64_t uid, cudnnDataType_t type);
/* An intermediate; row-major. */
cudnn_tensor cudnn_graph_inner(cudnn_graph *g, cudnnDataType_t type, const int64_t *dim);
cudnn_tensor cudnn_graph_inner_as(cudnn_graph *g, const cudnn_layout *l);

/* c = a b, where entry i of the batch has rows[i] rows, columns[i] columns, inner[i] terms; NULL:
 * all. */
typedef struct cudnn_sizes {
    const cudnn_tensor *rows, *columns, *inner;
} cudnn_sizes;
void cudnn_graph_matmul(cudnn_graph *g, cudnn_tensor a, cudnn_tensor b, cudnn_tensor c,
                        cudnn_sizes of);
/* y = f(x) or f(x, b), computed as `type`. */
void cudnn_graph_map(cudnn_graph *g, cudnnPointwiseMode_t f, cudnnDataType_t type, cudnn_tensor x,
                     const cudnn_tensor *b, cudnn_tensor y);
/* y = index of x's element on this axis */
void cudnn_graph_index(cudnn_graph *g, int64_t axis, cudnn_tensor x, cudnn_tensor y);
/* y = t ? x : otherwise */
void cudnn_graph_select(cudnn_graph *g, cudnn_tensor x, cudnn_tensor otherwise, cudnn_tensor t,
                        cudnn_tensor y);
void cudnn_graph_reduce(cudnn_graph *g, cudnnReduceTensorOp_t f, cudnn_tensor x, cudnn_tensor y);
/* y is x's memory seen with y's dimensions and strides */
void cudnn_graph_reshape(cudnn_graph *g, cudnn_tensor x, cudnn_tensor y);

/* What a graph is compiled for: a handle of a GPU, or, without one, a description of it. */
typedef struct cudnn_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
    bool deterministic; /* refuse engines that may give other bits next time */
} cudnn_target;

typedef struct cudnn_plan {
    cudnn_graph *graph; /* owned */
    cudnnBackendDescriptor_t it;
    int64_t workspace_bytes;
} cudnn_plan;

/* The first engine of the library's list that takes the graph. Takes g (heap) in every case. */
WARN_UNUSED status cudnn_graph_plan(cudnn_graph *g, const cudnn_target *t, cudnn_plan *out);
void cudnn_plan_done(cudnn_plan *p);

/* Queues the plan on the handle's stream. pointers by uid: device memory, or host for numbers. */
WARN_UNUSED status cudnn_plan_run(const cudnn_plan *p, cudnnHandle_t handle, int64_t n,
                                  const int64_t *uids, void *const *pointers, void *workspace);

#endif

#endif
