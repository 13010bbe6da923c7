/* SPDX-License-Identifier: Apache-2.0 */
/* cudnn_graph.c: builds the library's descriptors for a graph, and tries its engines until one
 * makes a plan (cudnn_graph.h). */
#include "trainer/ops/cuda/cudnn_graph.h"

#ifdef TESSERA_CUDNN

#include <stdlib.h>
#include <string.h>

enum { ENGINES_MAX = 32, NOTES_MAX = 32 };

typedef cudnnBackendDescriptor_t descriptor;

static void keep_error(cudnn_graph *graph, const char *call, cudnnStatus_t error)
{
    if (error != CUDNN_STATUS_SUCCESS && graph->st == ST_OK)
        graph->st = cudnn_fail(call, error);
}

static descriptor make_descriptor(cudnn_graph *graph, cudnnBackendDescriptorType_t type)
{
    descriptor desc = NULL;
    if (graph->st == ST_OK && graph->n_made == CUDNN_MADE)
        graph->st = FAIL(ST_INTERNAL, "a cuDNN graph has more than %d parts", CUDNN_MADE);
    if (graph->st != ST_OK)
        return NULL;
    keep_error(graph, "cudnnBackendCreateDescriptor",
               cudnn_api()->BackendCreateDescriptor(type, &desc));
    if (desc)
        graph->made[graph->n_made++] = desc;
    return desc;
}

static void set_attribute(cudnn_graph *graph, descriptor desc, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t n_ops, const void *values)
{
    if (graph->st == ST_OK)
        keep_error(graph, "cudnnBackendSetAttribute",
                   cudnn_api()->BackendSetAttribute(desc, name, type, n_ops, values));
}

static void set_descriptor(cudnn_graph *graph, descriptor desc, cudnnBackendAttributeName_t name,
                           descriptor value)
{
    set_attribute(graph, desc, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish_descriptor(cudnn_graph *graph, descriptor desc)
{
    if (graph->st == ST_OK)
        keep_error(graph, "cudnnBackendFinalize", cudnn_api()->BackendFinalize(desc));
}

static void finish_op(cudnn_graph *graph, descriptor desc)
{
    finish_descriptor(graph, desc);
    if (graph->st == ST_OK && graph->n_ops == CUDNN_OPS)
        graph->st = FAIL(ST_INTERNAL, "a cuDNN graph has more than %d operations", CUDNN_OPS);
    if (graph->st == ST_OK)
        graph->op[graph->n_ops++] = desc;
}

typedef struct kind {
    bool inner, number;
} kind;

static cudnn_tensor make_tensor(cudnn_graph *graph, int64_t uid, const cudnn_layout *layout,
                                kind wanted)
{
    cudnn_tensor tensor = {.it = make_descriptor(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR)};
    int64_t alignment = CUDNN_ALIGNMENT;
    memcpy(tensor.dim, layout->dim, sizeof tensor.dim);
    set_attribute(graph, tensor.it, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set_attribute(graph, tensor.it, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1,
                  &layout->type);
    set_attribute(graph, tensor.it, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, CUDNN_DIMS,
                  layout->dim);
    set_attribute(graph, tensor.it, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, CUDNN_DIMS,
                  layout->stride);
    set_attribute(graph, tensor.it, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1,
                  &alignment);
    set_attribute(graph, tensor.it, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1,
                  &wanted.inner);
    set_attribute(graph, tensor.it, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1,
                  &wanted.number);
    if (layout->ragged)
        set_descriptor(graph, tensor.it, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, layout->ragged->it);
    finish_descriptor(graph, tensor.it);
    return tensor;
}

cudnn_tensor cudnn_graph_tensor(cudnn_graph *graph, int64_t uid, const cudnn_layout *layout)
{
    return make_tensor(graph, uid, layout, (kind){0});
}

cudnn_tensor cudnn_graph_number(cudnn_graph *graph, int64_t uid, cudnnDataType_t type)
{
    cudnn_layout one = {.type = type, .dim = {1, 1, 1, 1}, .stride = {1, 1, 1, 1}};
    return make_tensor(graph, uid, &one, (kind){.number = true});
}

cudnn_tensor cudnn_graph_inner_as(cudnn_graph *graph, const cudnn_layout *layout)
{
    return make_tensor(graph, CUDNN_FIRST_UID + graph->next_uid++, layout, (kind){.inner = true});
}

cudnn_tensor cudnn_graph_inner(cudnn_graph *graph, cudnnDataType_t type, const int64_t *dim)
{
    cudnn_layout layout = {.type = type,
                           .stride = {dim[1] * dim[2] * dim[3], dim[2] * dim[3], dim[3], 1}};
    memcpy(layout.dim, dim, sizeof layout.dim);
    return cudnn_graph_inner_as(graph, &layout);
}

void cudnn_graph_matmul(cudnn_graph *graph, cudnn_tensor a, cudnn_tensor b, cudnn_tensor c,
                        cudnn_sizes of)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor how = make_descriptor(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_attribute(graph, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finish_descriptor(graph, how);
    descriptor op = make_descriptor(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.it);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.it);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.it);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    if (of.rows)
        set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, of.rows->it);
    if (of.columns)
        set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, of.columns->it);
    if (of.inner)
        set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, of.inner->it);
    finish_op(graph, op);
}

/* axis -1: the mode has no axis */
static descriptor pointwise(cudnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t type,
                            int64_t axis)
{
    descriptor how = make_descriptor(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set_attribute(graph, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_attribute(graph, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (axis >= 0)
        set_attribute(graph, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish_descriptor(graph, how);
    descriptor op = make_descriptor(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    return op;
}

void cudnn_graph_map(cudnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t type,
                     cudnn_tensor x, const cudnn_tensor *b, cudnn_tensor y)
{
    descriptor op = pointwise(graph, mode, type, -1);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.it);
    if (b)
        set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->it);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.it);
    finish_op(graph, op);
}

void cudnn_graph_index(cudnn_graph *graph, int64_t axis, cudnn_tensor x, cudnn_tensor y)
{
    descriptor op = pointwise(graph, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.it);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.it);
    finish_op(graph, op);
}

void cudnn_graph_select(cudnn_graph *graph, cudnn_tensor x, cudnn_tensor otherwise,
                        cudnn_tensor condition, cudnn_tensor y)
{
    descriptor op = pointwise(graph, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.it);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, otherwise.it);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, condition.it);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.it);
    finish_op(graph, op);
}

void cudnn_graph_reduce(cudnn_graph *graph, cudnnReduceTensorOp_t reduction, cudnn_tensor x,
                        cudnn_tensor y)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor how = make_descriptor(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set_attribute(graph, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set_attribute(graph, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                  &reduction);
    finish_descriptor(graph, how);
    descriptor op = make_descriptor(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.it);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.it);
    finish_op(graph, op);
}

void cudnn_graph_reshape(cudnn_graph *graph, cudnn_tensor x, cudnn_tensor y)
{
    descriptor op = make_descriptor(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.it);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.it);
    finish_op(graph, op);
}

static void graph_done(cudnn_graph *graph)
{
    while (graph->n_made > 0)
        cudnn_api()->BackendDestroyDescriptor(graph->made[--graph->n_made]);
    free(graph);
}

/* Whether the engine declares that it may add in any order. */
static bool wanders(cudnn_graph *graph, descriptor config)
{
    cudnnBackendNumericalNote_t note[NOTES_MAX];
    int64_t n = 0;
    descriptor engine = make_descriptor(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (graph->st == ST_OK)
        keep_error(graph, "cudnnBackendGetAttribute",
                   cudnn_api()->BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine));
    if (graph->st == ST_OK)
        keep_error(graph, "cudnnBackendGetAttribute",
                   cudnn_api()->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                    CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MAX, &n,
                                                    note));
    for (int64_t i = 0; i < n && graph->st == ST_OK; i++)
        if (note[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return true;
    return false;
}

/* Tries to make a plan with this engine. Returns NULL if the engine does not accept the graph after
 * all. */
static descriptor try_plan(cudnn_graph *graph, descriptor config, const cudnn_target *target)
{
    descriptor plan = make_descriptor(graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_descriptor(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (target->handle)
        set_attribute(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                      &target->handle);
    else
        set_descriptor(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target->properties);
    if (graph->st != ST_OK || cudnn_api()->BackendFinalize(plan) != CUDNN_STATUS_SUCCESS)
        return NULL;
    return plan;
}

static descriptor from_list(cudnn_graph *whole, descriptor graph, cudnnBackendHeurMode_t mode,
                            const cudnn_target *target)
{
    descriptor config[ENGINES_MAX],
        plan = NULL, list = make_descriptor(whole, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t n = 0;
    for (int i = 0; i < ENGINES_MAX; i++)
        config[i] = make_descriptor(whole, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    set_descriptor(whole, list, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set_attribute(whole, list, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!target->handle)
        set_descriptor(whole, list, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target->properties);
    if (whole->st != ST_OK || cudnn_api()->BackendFinalize(list) != CUDNN_STATUS_SUCCESS)
        return NULL;
    keep_error(whole, "cudnnBackendGetAttribute",
               cudnn_api()->BackendGetAttribute(list, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, ENGINES_MAX, &n,
                                                config));
    for (int64_t i = 0; i < n && !plan && whole->st == ST_OK; i++) {
        if (!target->deterministic || !wanders(whole, config[i]))
            plan = try_plan(whole, config[i], target);
        if (plan && whole->passed_over < target->passed_over) {
            whole->passed_over++;
            plan = NULL;
        }
    }
    return plan;
}

static descriptor find_plan(cudnn_graph *whole, const cudnn_target *target)
{
    const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_INSTANT, CUDNN_HEUR_MODE_FALLBACK};
    descriptor plan = NULL, graph = make_descriptor(whole, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_attribute(whole, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                  whole->n_ops, whole->op);
    if (target->handle)
        set_attribute(whole, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                      &target->handle);
    finish_descriptor(whole, graph);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0] && !plan && whole->st == ST_OK; i++)
        plan = from_list(whole, graph, modes[i], target);
    if (!plan && whole->st == ST_OK)
        whole->st = FAIL(ST_UNAVAILABLE, "cuDNN %zu has no%s%s engine for this graph",
                         cudnn_api()->GetVersion(), target->passed_over ? " other" : "",
                         target->deterministic ? " deterministic" : "");
    return plan;
}

status cudnn_graph_plan(cudnn_graph *graph, const cudnn_target *target, cudnn_plan *out)
{
    int64_t bytes = 0, n = 0;
    descriptor plan = find_plan(graph, target);
    if (graph->st == ST_OK)
        keep_error(graph, "cudnnBackendGetAttribute",
                   cudnn_api()->BackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                    CUDNN_TYPE_INT64, 1, &n, &bytes));
    status st = graph->st;
    if (st != ST_OK) {
        graph_done(graph);
        return st;
    }
    *out = (cudnn_plan){.graph = graph, .it = plan, .workspace_bytes = bytes};
    return ST_OK;
}

void cudnn_plan_done(cudnn_plan *made)
{
    if (made->graph)
        graph_done(made->graph);
    *made = (cudnn_plan){0};
}

static status run_pack(const cudnn_plan *made, cudnnHandle_t handle, descriptor pack, int64_t n,
                       const int64_t *uids, void *const *pointers, void *workspace)
{
    CUDNN_TRY(BackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n,
              uids);
    CUDNN_TRY(BackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
              n, pointers);
    CUDNN_TRY(BackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
              &workspace);
    CUDNN_TRY(BackendFinalize, pack);
    CUDNN_TRY(BackendExecute, handle, made->it, pack);
    return ST_OK;
}

status cudnn_plan_run(const cudnn_plan *made, cudnnHandle_t handle, int64_t n, const int64_t *uids,
                      void *const *pointers, void *workspace)
{
    descriptor pack = NULL;
    CUDNN_TRY(BackendCreateDescriptor, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    status st = run_pack(made, handle, pack, n, uids, pointers, workspace);
    cudnn_api()->BackendDestroyDescriptor(pack);
    return st;
}

#endif
