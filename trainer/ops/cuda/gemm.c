/* SPDX-License-Identifier: Apache-2.0 */
/* gemm.c: the dense product on CUDA, by cuBLASLt: bf16 in, fp32 accumulation, bf16 or fp32 out.
 *
 * cuBLASLt is column-major, and a row-major matrix that is read that way is its transpose. So the
 * library is asked for Ct [N, M] = op(B)t op(A)t: B is its first operand and A its second, the bias
 * runs along its rows, and nothing is moved. A residual is the library's C while the result is its
 * D: it is added before the one rounding, and the result is written once.
 *
 * A plan (descriptors, and the algorithm that the library's heuristic puts first) is made when a
 * shape is first seen and kept for the life of the device. Where K is split, partial sums stay in
 * fp32 and are added in a fixed order (reduction scheme COMPUTE_TYPE or none), so the same input
 * gives the same bits. Scratch is the stream's. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/device/cublas.h"
#include "trainer/device/cuda_device.h"
#include "trainer/ops/table.h"

status cuda_gemm(stream *queue, const gemm_args *gemm);

static const size_t WORKSPACE = (size_t)32 << 20; /* NVIDIA's recommendation for Hopper */
enum { ALIGN_MAX = 256, PLANS_FIRST = 64 };

/* What an algorithm depends on. It is compared byte by byte, so it has no padding. */
typedef struct key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b, c_acc, bias;
    /* Alignments of the addresses, at most ALIGN_MAX. Without a residual, align_residual is c's. */
    int32_t align_a, align_b, align_c, align_bias, align_residual;
    int32_t residual;
} key;

typedef struct plan {
    key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t left, right, result; /* the library's first operand is right */
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
} plan;

typedef struct plans {
    cublasLtHandle_t handle;
    plan *list;
    int64_t n, capacity;
} plans;

static void plan_done(plan *planned)
{
    if (planned->product)
        cublas_api()->MatmulDescDestroy(planned->product);
    if (planned->left)
        cublas_api()->MatrixLayoutDestroy(planned->left);
    if (planned->right)
        cublas_api()->MatrixLayoutDestroy(planned->right);
    if (planned->result)
        cublas_api()->MatrixLayoutDestroy(planned->result);
}

static void plans_done(void *data)
{
    plans *all = data;
    for (int64_t i = 0; i < all->n; i++)
        plan_done(&all->list[i]);
    cublas_api()->Destroy(all->handle);
    free(all->list);
    free(all);
}

static status plans_of(cuda_device *cuda, plans **out)
{
    if (!cuda->kept[KEPT_GEMM].data) {
        cublasLtHandle_t handle = NULL;
        CUBLAS_TRY(Create(&handle));
        plans *all = calloc(1, sizeof *all);
        if (!all) {
            cublas_api()->Destroy(handle);
            return FAIL(ST_NO_MEMORY, "gemm: no memory for plans");
        }
        all->handle = handle;
        cuda->kept[KEPT_GEMM] = (cuda_kept){all, plans_done};
    }
    *out = cuda->kept[KEPT_GEMM].data;
    return ST_OK;
}

static int32_t alignment(const void *array)
{
    uintptr_t bits = (uintptr_t)array | ALIGN_MAX;
    return (int32_t)(bits & (~bits + 1));
}

static key key_of(const gemm_args *gemm)
{
    return (key){.m = gemm->m,
                 .n = gemm->n,
                 .k = gemm->k,
                 .lda = gemm->lda,
                 .ldb = gemm->ldb,
                 .ldc = gemm->ldc,
                 .trans_a = gemm->trans_a,
                 .trans_b = gemm->trans_b,
                 .c_acc = gemm->c_acc,
                 .bias = gemm->bias != NULL,
                 .align_a = alignment(gemm->a),
                 .align_b = alignment(gemm->b),
                 .align_c = alignment(gemm->c),
                 .align_bias = alignment(gemm->bias),
                 .align_residual = alignment(gemm->residual ? gemm->residual : gemm->c),
                 .residual = gemm->residual != NULL};
}

static status describe_product(plan *planned)
{
    const key *k = &planned->key;
    cudaDataType_t c_type = k->c_acc ? CUDA_R_32F : CUDA_R_16BF, bias_type = CUDA_R_16BF;
    /* A row-major [r, c] is a column-major [c, r] for the library. */
    CUBLAS_TRY(MatrixLayoutCreate(&planned->left, CUDA_R_16BF, (uint64_t)(k->trans_a ? k->m : k->k),
                                  (uint64_t)(k->trans_a ? k->k : k->m), k->lda));
    CUBLAS_TRY(MatrixLayoutCreate(&planned->right, CUDA_R_16BF,
                                  (uint64_t)(k->trans_b ? k->k : k->n),
                                  (uint64_t)(k->trans_b ? k->n : k->k), k->ldb));
    CUBLAS_TRY(
        MatrixLayoutCreate(&planned->result, c_type, (uint64_t)k->n, (uint64_t)k->m, k->ldc));
    CUBLAS_TRY(MatmulDescCreate(&planned->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasOperation_t first = k->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = k->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS_TRY(MatmulDescSetAttribute(planned->product, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                      sizeof first));
    CUBLAS_TRY(MatmulDescSetAttribute(planned->product, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                      sizeof second));
    if (!k->bias)
        return ST_OK;
    cublasLtEpilogue_t add = CUBLASLT_EPILOGUE_BIAS;
    CUBLAS_TRY(
        MatmulDescSetAttribute(planned->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &add, sizeof add));
    CUBLAS_TRY(MatmulDescSetAttribute(planned->product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                                      &bias_type, sizeof bias_type));
    return ST_OK;
}

static status set_bias(const plan *planned, const void *bias)
{
    if (planned->key.bias)
        CUBLAS_TRY(MatmulDescSetAttribute(planned->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                          &bias, sizeof bias));
    return ST_OK;
}

static status set_preference(cublasLtMatmulPreference_t prefer, const key *k)
{
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        uint32_t value;
    } number[] = {
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)k->align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)k->align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)k->align_residual},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)k->align_c},
    };
    CUBLAS_TRY(MatmulPreferenceSetAttribute(prefer, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &WORKSPACE, sizeof WORKSPACE));
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        CUBLAS_TRY(MatmulPreferenceSetAttribute(prefer, number[i].name, &number[i].value,
                                                sizeof number[i].value));
    return ST_OK;
}

static status ask_heuristic(cublasLtHandle_t handle, plan *planned,
                            cublasLtMatmulPreference_t prefer)
{
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    TRY(set_preference(prefer, &planned->key));
    cublasStatus_t error = cublas_api()->MatmulAlgoGetHeuristic(
        handle, planned->product, planned->right, planned->left, planned->result, planned->result,
        prefer, 1, &best, &found);
    if (error != CUBLAS_STATUS_SUCCESS || found == 0 || best.state != CUBLAS_STATUS_SUCCESS)
        return FAIL(ST_BAD_DEVICE,
                    "cublasLtMatmulAlgoGetHeuristic: error %d, %s; no algorithm for m %lld n %lld "
                    "k %lld, strides %lld %lld %lld, transposed %d %d, %s out, alignments %d %d %d",
                    (int)error, cublas_api()->GetStatusString(error), (long long)planned->key.m,
                    (long long)planned->key.n, (long long)planned->key.k,
                    (long long)planned->key.lda, (long long)planned->key.ldb,
                    (long long)planned->key.ldc, planned->key.trans_a, planned->key.trans_b,
                    planned->key.c_acc ? "fp32" : "bf16", planned->key.align_a,
                    planned->key.align_b, planned->key.align_c);
    planned->algorithm = best.algo;
    planned->workspace = best.workspaceSize;
    return ST_OK;
}

static status choose_algorithm(cublasLtHandle_t handle, plan *planned, const gemm_args *gemm)
{
    cublasLtMatmulPreference_t prefer = NULL;
    TRY(describe_product(planned));
    TRY(set_bias(planned, gemm->bias));
    CUBLAS_TRY(MatmulPreferenceCreate(&prefer));
    status st = ask_heuristic(handle, planned, prefer);
    cublas_api()->MatmulPreferenceDestroy(prefer);
    return st;
}

static status plan_for(stream *queue, plans *all, const gemm_args *gemm, const plan **out)
{
    key k = key_of(gemm);
    for (int64_t i = 0; i < all->n; i++) {
        if (memcmp(&all->list[i].key, &k, sizeof k) == 0) {
            *out = &all->list[i];
            return ST_OK;
        }
    }
    if (all->n == all->capacity) {
        int64_t capacity = all->capacity ? 2 * all->capacity : PLANS_FIRST;
        plan *list = realloc(all->list, (size_t)capacity * sizeof *list);
        if (!list)
            return FAIL(ST_NO_MEMORY, "gemm: no memory for plans");
        all->list = list;
        all->capacity = capacity;
    }
    plan planned = {.key = k};
    queue->dev->counts.allocations++;
    status st = choose_algorithm(all->handle, &planned, gemm);
    if (st != ST_OK) {
        plan_done(&planned);
        return st;
    }
    all->list[all->n] = planned;
    *out = &all->list[all->n++];
    return ST_OK;
}

/* The same checks as on the CPU (cpu/gemm.c), and what CUDA does not do. */
static status check_gemm(const gemm_args *gemm)
{
    int64_t a_width = gemm->trans_a ? gemm->m : gemm->k,
            b_width = gemm->trans_b ? gemm->k : gemm->n;
    if (gemm->m < 0 || gemm->n < 0 || gemm->k < 0 || gemm->m > INT_MAX || gemm->n > INT_MAX ||
        gemm->k > INT_MAX || gemm->lda > INT_MAX || gemm->ldb > INT_MAX || gemm->ldc > INT_MAX)
        return FAIL(ST_BAD_INPUT, "gemm: m %lld, n %lld, k %lld and the strides must fit 31 bits",
                    (long long)gemm->m, (long long)gemm->n, (long long)gemm->k);
    if (gemm->m == 0 || gemm->n == 0)
        return ST_OK;
    if (gemm->ldc < gemm->n || (gemm->k > 0 && (gemm->lda < a_width || gemm->ldb < b_width)))
        return FAIL(
            ST_BAD_INPUT,
            "gemm: the row strides %lld, %lld, %lld are shorter than the rows of %lld, %lld, %lld",
            (long long)gemm->lda, (long long)gemm->ldb, (long long)gemm->ldc, (long long)a_width,
            (long long)b_width, (long long)gemm->n);
    if (gemm->bias && gemm->c_acc)
        return FAIL(ST_BAD_INPUT, "gemm: a bias goes with a bf16 result on CUDA, not with fp32");
    if (gemm->bias && (gemm->accumulate || gemm->residual) && gemm->k == 0)
        return FAIL(ST_BAD_INPUT, "gemm: on CUDA a product with K = 0 cannot add a bias to C");
    return gemm_check_residual(gemm);
}

/* K = 0: the sum has no terms, so only the bias, the residual or the old C remains. */
static status empty_sum(stream *queue, const gemm_args *gemm)
{
    const backend_vtable *backend = queue->dev->backend;
    size_t size = gemm->c_acc ? sizeof(float) : sizeof(uint16_t), bytes = (size_t)gemm->n * size;
    for (int64_t i = 0; i < gemm->m && !gemm->accumulate; i++) {
        size_t at = (size_t)(i * gemm->ldc) * size;
        char *row = (char *)gemm->c + at;
        const char *from = gemm->residual ? (const char *)gemm->residual + at : gemm->bias;
        TRY(from ? backend->copy(queue, row, from, bytes) : backend->zero(queue, row, bytes));
    }
    return ST_OK;
}

status cuda_gemm(stream *queue, const gemm_args *gemm)
{
    plans *all;
    const plan *planned;
    void *workspace;
    TRY(check_gemm(gemm));
    if (gemm->m == 0 || gemm->n == 0)
        return ST_OK;
    if (gemm->k == 0)
        return empty_sum(queue, gemm);
    TRY(plans_of((cuda_device *)queue->dev, &all));
    TRY(plan_for(queue, all, gemm, &planned));
    TRY(set_bias(planned, gemm->bias));
    TRY(cuda_scratch(queue, planned->workspace, &workspace));
    float alpha = (float)gemm->alpha, beta = gemm->accumulate || gemm->residual ? 1.0f : 0.0f;
    const void *added = gemm->residual ? gemm->residual : gemm->c;
    cublasStatus_t error = cublas_api()->Matmul(
        all->handle, planned->product, &alpha, gemm->b, planned->right, gemm->a, planned->left,
        &beta, added, planned->result, gemm->c, planned->result, &planned->algorithm, workspace,
        planned->workspace, queue->handle);
    if (error != CUBLAS_STATUS_SUCCESS)
        return FAIL(ST_BAD_DEVICE, "cublasLtMatmul of m %lld n %lld k %lld: error %d, %s",
                    (long long)gemm->m, (long long)gemm->n, (long long)gemm->k, (int)error,
                    cublas_api()->GetStatusString(error));
    return ST_OK;
}
