/* SPDX-License-Identifier: Apache-2.0 */
/* cublas_host.c: the stand-in for cuBLASLt; cublas_host.h describes it. Letters: a, b the factors
 * of a product; c what it is added to; d the result; m, n, k rows, columns and summed axis. */
#include "tests/unit/trainer/ops/cuda/cublas_host.h"

#include <stdlib.h>
#include <string.h>

#include "trainer/model/dims/convert.h"

struct cublas_host cublas_host;

typedef struct layout {
    cudaDataType_t type;
    int64_t rows, columns, stride; /* column-major */
} layout;

typedef struct product {
    cublasOperation_t op[2];
    cublasLtEpilogue_t epilogue;
    cudaDataType_t bias_type;
    const void *bias;
} product;

static void *make_object(size_t bytes)
{
    cublas_host.alive++;
    return calloc(1, bytes);
}

static cublasStatus_t free_object(const void *memory)
{
    cublas_host.alive--;
    free((void *)memory);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t create_cublas(cublasLtHandle_t *out)
{
    *out = make_object(1);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t destroy_cublas(cublasLtHandle_t handle)
{
    return free_object(handle);
}

static const char *status_words(cublasStatus_t st)
{
    return st == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "other";
}

static cublasStatus_t layout_create(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                    uint64_t columns, int64_t stride)
{
    layout *degrees = make_object(sizeof *degrees);
    *degrees = (layout){type, (int64_t)rows, (int64_t)columns, stride};
    *out = (cublasLtMatrixLayout_t)(void *)degrees;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t layout_destroy(cublasLtMatrixLayout_t matrix)
{
    return free_object(matrix);
}

static cublasStatus_t desc_create(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                  cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *out = make_object(sizeof(product));
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t desc_destroy(cublasLtMatmulDesc_t desc)
{
    return free_object(desc);
}

static cublasStatus_t desc_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name,
                               const void *value, size_t bytes)
{
    product *work = (product *)(void *)desc;
    switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        memcpy(&work->op[0], value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_TRANSB:
        memcpy(&work->op[1], value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        memcpy(&work->epilogue, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        memcpy(&work->bias, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        memcpy(&work->bias_type, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

static cublasStatus_t preference_create(cublasLtMatmulPreference_t *out)
{
    *out = make_object(1);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t preference_destroy(cublasLtMatmulPreference_t prefer)
{
    return free_object(prefer);
}

static cublasStatus_t preference_set(cublasLtMatmulPreference_t prefer,
                                     cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                     size_t bytes)
{
    (void)prefer;
    uint32_t *to = name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES   ? &cublas_host.align[0]
                   : name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES ? &cublas_host.align[1]
                   : name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES ? &cublas_host.align[2]
                   : name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES ? &cublas_host.align[3]
                   : name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ? &cublas_host.schemes
                                                                        : NULL;
    if (to)
        memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                cublasLtMatrixLayout_t first, cublasLtMatrixLayout_t second,
                                cublasLtMatrixLayout_t matrix, cublasLtMatrixLayout_t out,
                                cublasLtMatmulPreference_t prefer, int wanted,
                                cublasLtMatmulHeuristicResult_t *results, int *found)
{
    (void)handle, (void)desc, (void)first, (void)second, (void)matrix, (void)out, (void)prefer,
        (void)wanted;
    cublas_host.asked++;
    if (cublas_host.refuse) {
        *found = 0;
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    memset(results, 0, sizeof *results);
    results->workspaceSize = CUBLAS_HOST_WORKSPACE;
    results->state = CUBLAS_STATUS_SUCCESS;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static double read_cell(const layout *degrees, const void *base, int64_t row, int64_t column)
{
    double value;
    bool narrow = degrees->type == CUDA_R_16BF;
    size_t at = (size_t)(column * degrees->stride + row) * (narrow ? 2 : 4);
    convert_to_double(&value, (const char *)base + at, narrow ? DT_BF16 : DT_F32, 1);
    return value;
}

/* The library's rule, in column-major order: D = alpha op(A) op(B) + beta C, plus a bias along D's
 * rows. */
static cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                             const void *a, cublasLtMatrixLayout_t al, const void *b,
                             cublasLtMatrixLayout_t bl, const void *beta, const void *c,
                             cublasLtMatrixLayout_t cl, void *d, cublasLtMatrixLayout_t dl,
                             const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t bytes,
                             cudaStream_t stream)
{
    (void)handle, (void)algorithm, (void)workspace, (void)stream;
    const product *work = (const product *)(const void *)desc;
    const layout *la = (const void *)al, *lb = (const void *)bl, *lc = (const void *)cl;
    bool ta = work->op[0] == CUBLAS_OP_T, tb = work->op[1] == CUBLAS_OP_T;
    int64_t m = ta ? la->columns : la->rows, k = ta ? la->rows : la->columns;
    int64_t n = tb ? lb->rows : lb->columns;
    cublas_host.products++;
    if (m != lc->rows || n != lc->columns || k != (tb ? lb->columns : lb->rows) || cl != dl ||
        la->stride < la->rows || lb->stride < lb->rows || lc->stride < lc->rows ||
        bytes < CUBLAS_HOST_WORKSPACE)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < m; i++) {
            double sum = 0, bias = 0;
            for (int64_t value = 0; value < k; value++)
                sum += read_cell(la, a, ta ? value : i, ta ? i : value) *
                       read_cell(lb, b, tb ? j : value, tb ? value : j);
            sum *= (double)*(const float *)alpha;
            if (*(const float *)beta != 0)
                sum += (double)*(const float *)beta * read_cell(lc, c, i, j);
            if (work->epilogue == CUBLASLT_EPILOGUE_BIAS)
                convert_to_double(&bias, (const char *)work->bias + 2 * i, DT_BF16, 1);
            sum += bias;
            bool narrow = lc->type == CUDA_R_16BF;
            convert_from_double((char *)d + (size_t)(j * lc->stride + i) * (narrow ? 2 : 4),
                                narrow ? DT_BF16 : DT_F32, &sum, 1);
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}

static size_t version(void)
{
    return CUBLAS_VERSION;
}

static const cublas_library library = {
    .Create = create_cublas,
    .Destroy = destroy_cublas,
    .GetStatusString = status_words,
    .GetVersion = version,
    .Matmul = matmul,
    .MatmulAlgoGetHeuristic = heuristic,
    .MatmulDescCreate = desc_create,
    .MatmulDescDestroy = desc_destroy,
    .MatmulDescSetAttribute = desc_set,
    .MatmulPreferenceCreate = preference_create,
    .MatmulPreferenceDestroy = preference_destroy,
    .MatmulPreferenceSetAttribute = preference_set,
    .MatrixLayoutCreate = layout_create,
    .MatrixLayoutDestroy = layout_destroy,
};

status cublas_open(void)
{
    return ST_OK;
}

const cublas_library *cublas_api(void)
{
    return &library;
}
