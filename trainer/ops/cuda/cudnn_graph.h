/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_graph.h: a graph of operations for cuDNN, written down step by step, and the plan it
 * becomes. Tensors have four dimensions: batch, head, row, column.
 *
 * A failure is kept in the graph: after the first one, calls do nothing, and cudnn_graph_plan
 * reports it. So code that builds a graph reads like its formulas. */
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
    /* Bytes; declared for every tensor, so every pointer that is handed over must have it. */
    CUDNN_ALIGNMENT = 16
};

/* A tensor of the graph. */
typedef struct cudnn_tensor {
    cudnnBackendDescriptor_t it;
    int64_t dim[CUDNN_DIMS];
} cudnn_tensor;

typedef struct cudnn_graph {
    status st;
    int n_made, n_ops;
    int passed_over;  /* engines that would have taken the graph, as cudnn_target asks */
    int64_t next_uid; /* for tensors to which the caller gave no uid */
    cudnnBackendDescriptor_t made[CUDNN_MADE], op[CUDNN_OPS];
} cudnn_graph;

typedef struct cudnn_layout {
    cudnnDataType_t type;
    int64_t dim[CUDNN_DIMS], stride[CUDNN_DIMS]; /* elements */
    const cudnn_tensor *ragged; /* where each batch entry begins [batch + 1]; NULL: strided */
} cudnn_layout;

enum { CUDNN_FIRST_UID = 1000 }; /* uids of the caller are below this */

/* A tensor in the caller's memory, whose address is handed over by uid at each execution. */
cudnn_tensor cudnn_graph_tensor(cudnn_graph *graph, int64_t uid, const cudnn_layout *layout);
/* One number, handed over in host memory at each execution. */
cudnn_tensor cudnn_graph_number(cudnn_graph *graph, int64_t uid, cudnnDataType_t type);
/* An intermediate tensor, row-major. */
cudnn_tensor cudnn_graph_inner(cudnn_graph *graph, cudnnDataType_t type, const int64_t *dim);
cudnn_tensor cudnn_graph_inner_as(cudnn_graph *graph, const cudnn_layout *layout);

/* For a product c = a b: entry i of the batch has rows[i] rows, columns[i] columns and inner[i]
 * terms. NULL: all of them. */
typedef struct cudnn_sizes {
    const cudnn_tensor *rows, *columns, *inner;
} cudnn_sizes;
void cudnn_graph_matmul(cudnn_graph *graph, cudnn_tensor a, cudnn_tensor b, cudnn_tensor c,
                        cudnn_sizes of);
/* y = mode(x) or mode(x, b), computed as `type`. */
void cudnn_graph_map(cudnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t type,
                     cudnn_tensor x, const cudnn_tensor *b, cudnn_tensor y);
/* y = the index of x's element on this axis. */
void cudnn_graph_index(cudnn_graph *graph, int64_t axis, cudnn_tensor x, cudnn_tensor y);
/* y = condition ? x : otherwise, element by element. */
void cudnn_graph_select(cudnn_graph *graph, cudnn_tensor x, cudnn_tensor otherwise,
                        cudnn_tensor condition, cudnn_tensor y);
void cudnn_graph_reduce(cudnn_graph *graph, cudnnReduceTensorOp_t reduction, cudnn_tensor x,
                        cudnn_tensor y);
/* y is x's memory, seen with y's dimensions and strides. */
void cudnn_graph_reshape(cudnn_graph *graph, cudnn_tensor x, cudnn_tensor y);

/* What a graph is compiled for: the handle of a GPU or, where there is no GPU, a description of
 * one. */
typedef struct cudnn_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
    bool deterministic; /* refuse engines that may give other bits the next time */
    int passed_over;    /* how many of the engines that take the graph are not used */
} cudnn_target;

typedef struct cudnn_plan {
    cudnn_graph *graph; /* the plan owns it */
    cudnnBackendDescriptor_t it;
    int64_t workspace_bytes;
} cudnn_plan;

/* Compiles the graph with the first engine of the library's list that takes it, or a later one if
 * the target passes some over. g is on the heap
 * and is taken over in every case. */
WARN_UNUSED status cudnn_graph_plan(cudnn_graph *graph, const cudnn_target *target,
                                    cudnn_plan *out);
void cudnn_plan_done(cudnn_plan *plan);

/* Queues the plan on the handle's stream. pointers[i] belongs to uid i: device memory, or host
 * memory for a number. */
WARN_UNUSED status cudnn_plan_run(const cudnn_plan *plan, cudnnHandle_t handle, int64_t n,
                                  const int64_t *uids, void *const *pointers, void *workspace);

#endif

#endif
