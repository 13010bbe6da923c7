/* grouped_gemm.cu: grouped_gemm (gemm.h) on CUDA: its checks, and the choice of the kernel:
 * Hopper's (grouped_hopper.cuh) where the device has chosen it (training.experts) and rows are
 * whole 16-byte pieces, otherwise the portable one (grouped_portable.cuh). Both read the groups'
 * offsets on the device.
 */
#include "trainer/ops/cuda/grouped_gemm.cuh"
#include "trainer/ops/cuda/grouped_portable.cuh"

/* Each block takes 48 KiB for its stages, and each thread about 100 registers. */
enum { PORTABLE_BLOCKS_PER_SM = 2 };

template <int MODE, bool ALIGNED>
static __global__ void __launch_bounds__(PORTABLE_THREADS, PORTABLE_BLOCKS_PER_SM)
    grouped_portable_kernel(grouped_work work, const int32_t *offset, grouped_arrays arrays)
{
    SHARED_BYTES(shared);
    portable_block<MODE, ALIGNED>(work, shared, offset, arrays.a, arrays.b, arrays.out);
}

template <int MODE, bool ALIGNED>
static status portable(stream *queue, const grouped_gemm_args *args)
{
    grouped_work work = grouped_work_of(args, PORTABLE_TILE_N, PORTABLE_STEP, 1);
    const cuda_facts *facts = cuda_facts_of(queue);
    const int64_t blocks = grouped_clusters(
        &work, grouped_tiles_most(&work), facts->multiprocessors * (int64_t)PORTABLE_BLOCKS_PER_SM,
        args->beside ? TURNS_BESIDE : facts->turns);
    size_t shared = PORTABLE_TABLES + 2 * ((size_t)work.experts + 1) * sizeof(int32_t);
    cudaError_t error =
        cudaFuncSetAttribute(grouped_portable_kernel<MODE, ALIGNED>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error != cudaSuccess)
        return FAIL(ST_BAD_DEVICE, "grouped_gemm: %zu bytes of shared memory: %s", shared,
                    cudaGetErrorString(error));
    return LAUNCH(queue, (grouped_portable_kernel<MODE, ALIGNED>), grid_of(blocks),
                  PORTABLE_THREADS, shared, work, args->offset, grouped_arrays_of(args));
}

template <bool ALIGNED> static status portable_mode(stream *queue, const grouped_gemm_args *args)
{
    switch (args->mode) {
    case GROUPED_FWD:
        return portable<GROUPED_FWD, ALIGNED>(queue, args);
    case GROUPED_DGRAD:
        return portable<GROUPED_DGRAD, ALIGNED>(queue, args);
    default:
        return portable<GROUPED_WGRAD, ALIGNED>(queue, args);
    }
}

static status check_grouped(const grouped_gemm_args *args)
{
    if (args->mode != GROUPED_FWD && args->mode != GROUPED_DGRAD && args->mode != GROUPED_WGRAD)
        return FAIL(ST_BAD_INPUT, "grouped_gemm: there is no mode %d", args->mode);
    if (args->k <= 0 || args->n <= 0 || args->k > INT32_MAX / 2 || args->n > INT32_MAX / 2)
        return FAIL(
            ST_BAD_INPUT,
            "grouped_gemm: the widths are %lld and %lld; they must be positive and fit 30 bits",
            (long long)args->k, (long long)args->n);
    if (args->experts > GROUPED_EXPERTS_MAX || args->rows_cap > INT32_MAX / 2)
        return FAIL(
            ST_BAD_INPUT,
            "grouped_gemm: there are %lld experts and %lld rows; at most %d and 2^30 are possible",
            (long long)args->experts, (long long)args->rows_cap, GROUPED_EXPERTS_MAX);
    return grouped_gemm_check_gated(args);
}

extern "C" status cuda_grouped_gemm(stream *queue, const grouped_gemm_args *args)
{
    if (args->experts <= 0 || args->rows_cap <= 0)
        return ST_OK;
    status st = check_grouped(args);
    if (st != ST_OK)
        return st;
    if (!grouped_aligned(args))
        return portable_mode<false>(queue, args);
#ifdef __CUDACC__ /* a host cannot run this kind of tensor core */
    if (queue->dev->choices.way[CHOICE_EXPERTS] == EXPERTS_BY_HOPPER)
        return grouped_gemm_hopper(queue, args);
#endif
    return portable_mode<true>(queue, args);
}
