/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_gemm_hopper.cu: launches the grouped product's kernel for sm_90a
 * (grouped_hopper.cuh). It describes the arrays to TMA and starts one cluster of two blocks per
 * pair of multiprocessors, or several, one after the other, where other kernels run beside it.
 *
 * It does not cut one expert's weight gradient along its rows: with all tokens on one expert,
 * only K N / 32768 tiles share the work. */
#include "trainer/ops/cuda/grouped_gemm.cuh"
#include "trainer/ops/cuda/grouped_hopper.cuh"

/* This file is also compiled for sm_80, where the kernel is empty and never chosen. */
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_CLUSTER   __cluster_dims__(GROUPED_BLOCKS, 1, 1)
#define HOPPER_BODY(...) __VA_ARGS__
#else
#define HOPPER_CLUSTER
#define HOPPER_BODY(...)
#endif

template <int MODE>
static __global__ void HOPPER_CLUSTER __launch_bounds__(GROUPED_THREADS, 1)
    grouped_hopper_kernel(const __grid_constant__ CUtensorMap a_map,
                          const __grid_constant__ CUtensorMap b_map,
                          const __grid_constant__ grouped_work work, const int32_t *offset,
                          grouped_out out)
{
    HOPPER_BODY(extern __shared__ __align__(1024) unsigned char grouped_memory[];
                grouped_block<MODE>(work, grouped_memory, &a_map, &b_map, offset, out);)
}

typedef CUresult (*encode_tiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                 const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                 const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Finds the driver's function that encodes a TMA descriptor. It is found through the runtime,
 * since this library is not linked with libcuda. */
static status find_encoder(encode_tiled *out)
{
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                         cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess)
        return FAIL(
            ST_UNAVAILABLE,
            "grouped_gemm: the driver has no cuTensorMapEncodeTiled (CUDA error %d); install a "
            "driver for CUDA 12 or later",
            (int)error);
    *out = (encode_tiled)entry;
    return ST_OK;
}

/* Describes bf16 [depth, rows, width], which is read in boxes of 64 columns x box_rows. */
static status describe_tensor(encode_tiled encode, const void *array, int64_t width, int64_t rows,
                              int64_t depth, int box_rows, CUtensorMap *out)
{
    cuuint64_t size[3] = {(cuuint64_t)width, (cuuint64_t)rows, (cuuint64_t)depth};
    cuuint64_t stride[2] = {(cuuint64_t)width * 2, (cuuint64_t)(width * rows) * 2};
    cuuint32_t box[3] = {GROUPED_BOX, (cuuint32_t)box_rows, 1}, every[3] = {1, 1, 1};
    CUresult result = encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)array, size, stride,
                             box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return FAIL(ST_BAD_DEVICE,
                    "grouped_gemm: TMA refuses bf16 [%lld, %lld, %lld]: CUDA driver error %d",
                    (long long)depth, (long long)rows, (long long)width, (int)result);
    return ST_OK;
}

template <int MODE> static status hopper(stream *queue, const grouped_gemm_args *args)
{
    grouped_work work = grouped_work_of(args, GROUPED_TILE_N, GROUPED_STEP, GROUPED_BLOCKS);
    grouped_arrays arrays = grouped_arrays_of(args);
    arrays.out.stuck = cuda_facts_of(queue)->stuck;
    const grouped_operand oa = grouped_a(MODE), ob = grouped_b(MODE);
    const bool wgrad = MODE == GROUPED_WGRAD;
    encode_tiled encode = NULL;
    CUtensorMap a_map, b_map;
    status st = find_encoder(&encode);
    if (st == ST_OK)
        st = describe_tensor(encode, arrays.a, wgrad ? work.out_m : work.reduce, work.rows_cap, 1,
                             oa.box_bytes / 128, &a_map);
    if (st == ST_OK)
        st = describe_tensor(encode, arrays.b, args->n, wgrad ? work.rows_cap : args->k,
                             wgrad ? 1 : args->experts, ob.box_bytes / 128, &b_map);
    if (st != ST_OK)
        return st;
    const cuda_facts *facts = cuda_facts_of(queue);
    const int64_t clusters =
        grouped_clusters(&work, grouped_tiles_most(&work), facts->multiprocessors / GROUPED_BLOCKS,
                         args->beside ? TURNS_BESIDE : facts->turns);
    int shared = grouped_shared_bytes(work.experts);
    cudaError_t error = cudaFuncSetAttribute(grouped_hopper_kernel<MODE>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error != cudaSuccess)
        return FAIL(ST_BAD_DEVICE, "grouped_gemm: %d bytes of shared memory: %s", shared,
                    cudaGetErrorString(error));
    return LAUNCH(queue, grouped_hopper_kernel<MODE>, grid_of(clusters * GROUPED_BLOCKS),
                  GROUPED_THREADS, (size_t)shared, a_map, b_map, work, args->offset, arrays.out);
}

status grouped_gemm_hopper(stream *queue, const grouped_gemm_args *args)
{
    switch (args->mode) {
    case GROUPED_FWD:
        return hopper<GROUPED_FWD>(queue, args);
    case GROUPED_DGRAD:
        return hopper<GROUPED_DGRAD>(queue, args);
    default:
        return hopper<GROUPED_WGRAD>(queue, args);
    }
}
