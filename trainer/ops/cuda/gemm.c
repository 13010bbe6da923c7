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

status cuda_gemm(stream *s, const gemm_args *g);

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

static void plan_done(plan *p)
{
    if (p->product)
        cublas_api()->MatmulDescDestroy(p->product);
    if (p->left)
        cublas_api()->MatrixLayoutDestroy(p->left);
    if (p->right)
        cublas_api()->MatrixLayoutDestroy(p->right);
    if (p->result)
        cublas_api()->MatrixLayoutDestroy(p->result);
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

static status plans_of(cuda_device *d, plans **out)
{
    if (!d->kept[KEPT_GEMM].data) {
        cublasLtHandle_t handle = NULL;
        CUBLAS_TRY(Create(&handle));
        plans *all = calloc(1, sizeof *all);
        if (!all) {
            cublas_api()->Destroy(handle);
            return FAIL(ST_NO_MEMORY, "gemm: no memory for plans");
        }
        all->handle = handle;
        d->kept[KEPT_GEMM] = (cuda_kept){all, plans_done};
    }
    *out = d->kept[KEPT_GEMM].data;
    return ST_OK;
}

static int32_t alignment(const void *p)
{
    uintptr_t bits = (uintptr_t)p | ALIGN_MAX;
    return (int32_t)(bits & (~bits + 1));
}

static key key_of(const gemm_args *g)
{
    return (key){.m = g->m,
                 .n = g->n,
                 .k = g->k,
                 .lda = g->lda,
                 .ldb = g->ldb,
                 .ldc = g->ldc,
                 .trans_a = g->trans_a,
                 .trans_b = g->trans_b,
                 .c_acc = g->c_acc,
                 .bias = g->bias != NULL,
                 .align_a = alignment(g->a),
                 .align_b = alignment(g->b),
                 .align_c = alignment(g->c),
                 .align_bias = alignment(g->bias),
                 .align_residual = alignment(g->residual ? g->residual : g->c),
                 .residual = g->residual != NULL};
}

static status describe_product(plan *p)
{
    const key *k = &p->key;
    cudaDataType_t c_type = k->c_acc ? CUDA_R_32F : CUDA_R_16BF, bias_type = CUDA_R_16BF;
    /* A row-major [r, c] is a column-major [c, r] for the library. */
    CUBLAS_TRY(MatrixLayoutCreate(&p->left, CUDA_R_16BF, (uint64_t)(k->trans_a ? k->m : k->k),
                                  (uint64_t)(k->trans_a ? k->k : k->m), k->lda));
    CUBLAS_TRY(MatrixLayoutCreate(&p->right, CUDA_R_16BF, (uint64_t)(k->trans_b ? k->k : k->n),
                                  (uint64_t)(k->trans_b ? k->n : k->k), k->ldb));
    CUBLAS_TRY(MatrixLayoutCreate(&p->result, c_type, (uint64_t)k->n, (uint64_t)k->m, k->ldc));
    CUBLAS_TRY(MatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasOperation_t first = k->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = k->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS_TRY(
        MatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    CUBLAS_TRY(
        MatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    if (!k->bias)
        return ST_OK;
    cublasLtEpilogue_t add = CUBLASLT_EPILOGUE_BIAS;
    CUBLAS_TRY(MatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &add, sizeof add));
    CUBLAS_TRY(MatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                                      sizeof bias_type));
    return ST_OK;
}

static status set_bias(const plan *p, const void *bias)
{
    if (p->key.bias)
        CUBLAS_TRY(MatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                          sizeof bias));
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

static status ask_heuristic(cublasLtHandle_t handle, plan *p, cublasLtMatmulPreference_t prefer)
{
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    TRY(set_preference(prefer, &p->key));
    cublasStatus_t error = cublas_api()->MatmulAlgoGetHeuristic(
        handle, p->product, p->right, p->left, p->result, p->result, prefer, 1, &best, &found);
    if (error != CUBLAS_STATUS_SUCCESS || found == 0 || best.state != CUBLAS_STATUS_SUCCESS)
        return FAIL(ST_BAD_DEVICE,
                    "cublasLtMatmulAlgoGetHeuristic: error %d, %s; no algorithm for m %lld n %lld "
                    "k %lld, strides %lld %lld %lld, transposed %d %d, %s out, alignments %d %d %d",
                    (int)error, cublas_api()->GetStatusString(error), (long long)p->key.m,
                    (long long)p->key.n, (long long)p->key.k, (long long)p->key.lda,
                    (long long)p->key.ldb, (long long)p->key.ldc, p->key.trans_a, p->key.trans_b,
                    p->key.c_acc ? "fp32" : "bf16", p->key.align_a, p->key.align_b, p->key.align_c);
    p->algorithm = best.algo;
    p->workspace = best.workspaceSize;
    return ST_OK;
}

static status choose_algorithm(cublasLtHandle_t handle, plan *p, const gemm_args *g)
{
    cublasLtMatmulPreference_t prefer = NULL;
    TRY(describe_product(p));
    TRY(set_bias(p, g->bias));
    CUBLAS_TRY(MatmulPreferenceCreate(&prefer));
    status st = ask_heuristic(handle, p, prefer);
    cublas_api()->MatmulPreferenceDestroy(prefer);
    return st;
}

static status plan_for(stream *s, plans *all, const gemm_args *g, const plan **out)
{
    key k = key_of(g);
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
    plan p = {.key = k};
    s->dev->counts.allocations++;
    status st = choose_algorithm(all->handle, &p, g);
    if (st != ST_OK) {
        plan_done(&p);
        return st;
    }
    all->list[all->n] = p;
    *out = &all->list[all->n++];
    return ST_OK;
}

/* The same checks as on the CPU (cpu/gemm.c), and what CUDA does not do. */
static status check_gemm(const gemm_args *g)
{
    int64_t a_width = g->trans_a ? g->m : g->k, b_width = g->trans_b ? g->k : g->n;
    if (g->m < 0 || g->n < 0 || g->k < 0 || g->m > INT_MAX || g->n > INT_MAX || g->k > INT_MAX ||
        g->lda > INT_MAX || g->ldb > INT_MAX || g->ldc > INT_MAX)
        return FAIL(ST_BAD_INPUT, "gemm: m %lld, n %lld, k %lld and the strides must fit 31 bits",
                    (long long)g->m, (long long)g->n, (long long)g->k);
    if (g->m == 0 || g->n == 0)
        return ST_OK;
    if (g->ldc < g->n || (g->k > 0 && (g->lda < a_width || g->ldb < b_width)))
        return FAIL(
            ST_BAD_INPUT,
            "gemm: the row strides %lld, %lld, %lld are shorter than the rows of %lld, %lld, %lld",
            (long long)g->lda, (long long)g->ldb, (long long)g->ldc, (long long)a_width,
            (long long)b_width, (long long)g->n);
    if (g->bias && g->c_acc)
        return FAIL(ST_BAD_INPUT, "gemm: a bias goes with a bf16 result on CUDA, not with fp32");
    if (g->bias && (g->accumulate || g->residual) && g->k == 0)
        return FAIL(ST_BAD_INPUT, "gemm: on CUDA a product with K = 0 cannot add a bias to C");
    return gemm_check_residual(g);
}

/* K = 0: the sum has no terms, so only the bias, the residual or the old C remains. */
static status empty_sum(stream *s, const gemm_args *g)
{
    const backend_vtable *v = s->dev->backend;
    size_t size = g->c_acc ? sizeof(float) : sizeof(uint16_t), bytes = (size_t)g->n * size;
    for (int64_t i = 0; i < g->m && !g->accumulate; i++) {
        size_t at = (size_t)(i * g->ldc) * size;
        char *row = (char *)g->c + at;
        const char *from = g->residual ? (const char *)g->residual + at : g->bias;
        TRY(from ? v->copy(s, row, from, bytes) : v->zero(s, row, bytes));
    }
    return ST_OK;
}

status cuda_gemm(stream *s, const gemm_args *g)
{
    plans *all;
    const plan *p;
    void *workspace;
    TRY(check_gemm(g));
    if (g->m == 0 || g->n == 0)
        return ST_OK;
    if (g->k == 0)
        return empty_sum(s, g);
    TRY(plans_of((cuda_device *)s->dev, &all));
    TRY(plan_for(s, all, g, &p));
    TRY(set_bias(p, g->bias));
    TRY(cuda_scratch(s, p->workspace, &workspace));
    float alpha = (float)g->alpha, beta = g->accumulate || g->residual ? 1.0f : 0.0f;
    const void *added = g->residual ? g->residual : g->c;
    cublasStatus_t error = cublas_api()->Matmul(
        all->handle, p->product, &alpha, g->b, p->right, g->a, p->left, &beta, added, p->result,
        g->c, p->result, &p->algorithm, workspace, p->workspace, s->handle);
    if (error != CUBLAS_STATUS_SUCCESS)
        return FAIL(ST_BAD_DEVICE, "cublasLtMatmul of m %lld n %lld k %lld: error %d, %s",
                    (long long)g->m, (long long)g->n, (long long)g->k, (int)error,
                    cublas_api()->GetStatusString(error));
    return ST_OK;
}
