/* cudnn_graph.c: builds the library's descriptors for a graph, and tries its engines until one
 * makes a plan (cudnn_graph.h). */
#include "trainer/ops/cuda/cudnn_graph.h"

#ifdef TESSERA_CUDNN

#include <stdlib.h>
#include <string.h>

enum { ENGINES_MAX = 32, NOTES_MAX = 32 };

typedef cudnnBackendDescriptor_t descriptor;

static void keep_error(cudnn_graph *g, const char *call, cudnnStatus_t error)
{
    if (error != CUDNN_STATUS_SUCCESS && g->st == ST_OK)
        g->st = cudnn_fail(call, error);
}

static descriptor make_descriptor(cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;
    if (g->st == ST_OK && g->n_made == CUDNN_MADE)
        g->st = FAIL(ST_INTERNAL, "a cuDNN graph has more than %d parts", CUDNN_MADE);
    if (g->st != ST_OK)
        return NULL;
    keep_error(g, "cudnnBackendCreateDescriptor", cudnn_api()->BackendCreateDescriptor(type, &d));
    if (d)
        g->made[g->n_made++] = d;
    return d;
}

static void set_attribute(cudnn_graph *g, descriptor d, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (g->st == ST_OK)
        keep_error(g, "cudnnBackendSetAttribute",
                   cudnn_api()->BackendSetAttribute(d, name, type, n, values));
}

static void set_descriptor(cudnn_graph *g, descriptor d, cudnnBackendAttributeName_t name,
                           descriptor value)
{
    set_attribute(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish_descriptor(cudnn_graph *g, descriptor d)
{
    if (g->st == ST_OK)
        keep_error(g, "cudnnBackendFinalize", cudnn_api()->BackendFinalize(d));
}

static void finish_op(cudnn_graph *g, descriptor d)
{
    finish_descriptor(g, d);
    if (g->st == ST_OK && g->n_ops == CUDNN_OPS)
        g->st = FAIL(ST_INTERNAL, "a cuDNN graph has more than %d operations", CUDNN_OPS);
    if (g->st == ST_OK)
        g->op[g->n_ops++] = d;
}

typedef struct kind {
    bool inner, number;
} kind;

static cudnn_tensor make_tensor(cudnn_graph *g, int64_t uid, const cudnn_layout *l, kind k)
{
    cudnn_tensor t = {.it = make_descriptor(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR)};
    int64_t alignment = CUDNN_ALIGNMENT;
    memcpy(t.dim, l->dim, sizeof t.dim);
    set_attribute(g, t.it, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set_attribute(g, t.it, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &l->type);
    set_attribute(g, t.it, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, CUDNN_DIMS, l->dim);
    set_attribute(g, t.it, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, CUDNN_DIMS, l->stride);
    set_attribute(g, t.it, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set_attribute(g, t.it, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &k.inner);
    set_attribute(g, t.it, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &k.number);
    if (l->ragged)
        set_descriptor(g, t.it, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, l->ragged->it);
    finish_descriptor(g, t.it);
    return t;
}

cudnn_tensor cudnn_graph_tensor(cudnn_graph *g, int64_t uid, const cudnn_layout *l)
{
    return make_tensor(g, uid, l, (kind){0});
}

cudnn_tensor cudnn_graph_number(cudnn_graph *g, int64_t uid, cudnnDataType_t type)
{
    cudnn_layout one = {.type = type, .dim = {1, 1, 1, 1}, .stride = {1, 1, 1, 1}};
    return make_tensor(g, uid, &one, (kind){.number = true});
}

cudnn_tensor cudnn_graph_inner_as(cudnn_graph *g, const cudnn_layout *l)
{
    return make_tensor(g, CUDNN_FIRST_UID + g->next_uid++, l, (kind){.inner = true});
}

cudnn_tensor cudnn_graph_inner(cudnn_graph *g, cudnnDataType_t type, const int64_t *dim)
{
    cudnn_layout l = {.type = type,
                      .stride = {dim[1] * dim[2] * dim[3], dim[2] * dim[3], dim[3], 1}};
    memcpy(l.dim, dim, sizeof l.dim);
    return cudnn_graph_inner_as(g, &l);
}

void cudnn_graph_matmul(cudnn_graph *g, cudnn_tensor a, cudnn_tensor b, cudnn_tensor c,
                        cudnn_sizes of)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor how = make_descriptor(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_attribute(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finish_descriptor(g, how);
    descriptor op = make_descriptor(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.it);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.it);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.it);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    if (of.rows)
        set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, of.rows->it);
    if (of.columns)
        set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, of.columns->it);
    if (of.inner)
        set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, of.inner->it);
    finish_op(g, op);
}

/* axis -1: the mode has no axis */
static descriptor pointwise(cudnn_graph *g, cudnnPointwiseMode_t f, cudnnDataType_t type,
                            int64_t axis)
{
    descriptor how = make_descriptor(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set_attribute(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &f);
    set_attribute(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (axis >= 0)
        set_attribute(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finish_descriptor(g, how);
    descriptor op = make_descriptor(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    return op;
}

void cudnn_graph_map(cudnn_graph *g, cudnnPointwiseMode_t f, cudnnDataType_t type, cudnn_tensor x,
                     const cudnn_tensor *b, cudnn_tensor y)
{
    descriptor op = pointwise(g, f, type, -1);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.it);
    if (b)
        set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->it);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.it);
    finish_op(g, op);
}

void cudnn_graph_index(cudnn_graph *g, int64_t axis, cudnn_tensor x, cudnn_tensor y)
{
    descriptor op = pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, axis);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.it);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.it);
    finish_op(g, op);
}

void cudnn_graph_select(cudnn_graph *g, cudnn_tensor x, cudnn_tensor otherwise, cudnn_tensor t,
                        cudnn_tensor y)
{
    descriptor op = pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.it);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, otherwise.it);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t.it);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.it);
    finish_op(g, op);
}

void cudnn_graph_reduce(cudnn_graph *g, cudnnReduceTensorOp_t f, cudnn_tensor x, cudnn_tensor y)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    descriptor how = make_descriptor(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set_attribute(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set_attribute(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &f);
    finish_descriptor(g, how);
    descriptor op = make_descriptor(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.it);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.it);
    finish_op(g, op);
}

void cudnn_graph_reshape(cudnn_graph *g, cudnn_tensor x, cudnn_tensor y)
{
    descriptor op = make_descriptor(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.it);
    set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.it);
    finish_op(g, op);
}

static void graph_done(cudnn_graph *g)
{
    while (g->n_made > 0)
        cudnn_api()->BackendDestroyDescriptor(g->made[--g->n_made]);
    free(g);
}

/* Whether the engine declares that it may add in any order. */
static bool wanders(cudnn_graph *g, descriptor config)
{
    cudnnBackendNumericalNote_t note[NOTES_MAX];
    int64_t n = 0;
    descriptor engine = make_descriptor(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (g->st == ST_OK)
        keep_error(g, "cudnnBackendGetAttribute",
                   cudnn_api()->BackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine));
    if (g->st == ST_OK)
        keep_error(g, "cudnnBackendGetAttribute",
                   cudnn_api()->BackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                                    CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MAX, &n,
                                                    note));
    for (int64_t i = 0; i < n && g->st == ST_OK; i++)
        if (note[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return true;
    return false;
}

/* Tries to make a plan with this engine. Returns NULL if the engine does not accept the graph after
 * all. */
static descriptor try_plan(cudnn_graph *g, descriptor config, const cudnn_target *t)
{
    descriptor plan = make_descriptor(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (t->handle)
        set_attribute(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &t->handle);
    else
        set_descriptor(g, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, t->properties);
    if (g->st != ST_OK || cudnn_api()->BackendFinalize(plan) != CUDNN_STATUS_SUCCESS)
        return NULL;
    return plan;
}

static descriptor from_list(cudnn_graph *g, descriptor graph, cudnnBackendHeurMode_t mode,
                            const cudnn_target *t)
{
    descriptor config[ENGINES_MAX], plan = NULL,
                                    list = make_descriptor(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t n = 0;
    for (int i = 0; i < ENGINES_MAX; i++)
        config[i] = make_descriptor(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    set_descriptor(g, list, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set_attribute(g, list, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (!t->handle)
        set_descriptor(g, list, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, t->properties);
    if (g->st != ST_OK || cudnn_api()->BackendFinalize(list) != CUDNN_STATUS_SUCCESS)
        return NULL;
    keep_error(g, "cudnnBackendGetAttribute",
               cudnn_api()->BackendGetAttribute(list, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, ENGINES_MAX, &n,
                                                config));
    for (int64_t i = 0; i < n && !plan && g->st == ST_OK; i++)
        if (!t->deterministic || !wanders(g, config[i]))
            plan = try_plan(g, config[i], t);
    return plan;
}

static descriptor find_plan(cudnn_graph *g, const cudnn_target *t)
{
    const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_INSTANT, CUDNN_HEUR_MODE_FALLBACK};
    descriptor plan = NULL, graph = make_descriptor(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_attribute(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops,
                  g->op);
    if (t->handle)
        set_attribute(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &t->handle);
    finish_descriptor(g, graph);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0] && !plan && g->st == ST_OK; i++)
        plan = from_list(g, graph, modes[i], t);
    if (!plan && g->st == ST_OK)
        g->st = FAIL(ST_UNAVAILABLE, "cuDNN %zu has no%s engine for this graph",
                     cudnn_api()->GetVersion(), t->deterministic ? " deterministic" : "");
    return plan;
}

status cudnn_graph_plan(cudnn_graph *g, const cudnn_target *t, cudnn_plan *out)
{
    int64_t bytes = 0, n = 0;
    descriptor plan = find_plan(g, t);
    if (g->st == ST_OK)
        keep_error(g, "cudnnBackendGetAttribute",
                   cudnn_api()->BackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                    CUDNN_TYPE_INT64, 1, &n, &bytes));
    status st = g->st;
    if (st != ST_OK) {
        graph_done(g);
        return st;
    }
    *out = (cudnn_plan){.graph = g, .it = plan, .workspace_bytes = bytes};
    return ST_OK;
}

void cudnn_plan_done(cudnn_plan *p)
{
    if (p->graph)
        graph_done(p->graph);
    *p = (cudnn_plan){0};
}

static status run_pack(const cudnn_plan *p, cudnnHandle_t handle, descriptor pack, int64_t n,
                       const int64_t *uids, void *const *pointers, void *workspace)
{
    CUDNN_TRY(BackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n,
              uids);
    CUDNN_TRY(BackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
              n, pointers);
    CUDNN_TRY(BackendSetAttribute, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
              &workspace);
    CUDNN_TRY(BackendFinalize, pack);
    CUDNN_TRY(BackendExecute, handle, p->it, pack);
    return ST_OK;
}

status cudnn_plan_run(const cudnn_plan *p, cudnnHandle_t handle, int64_t n, const int64_t *uids,
                      void *const *pointers, void *workspace)
{
    descriptor pack = NULL;
    CUDNN_TRY(BackendCreateDescriptor, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    status st = run_pack(p, handle, pack, n, uids, pointers, workspace);
    cudnn_api()->BackendDestroyDescriptor(pack);
    return st;
}

#endif
