/* grouped_gemm.cu: grouped_gemm (gemm.h) on CUDA: its checks, and which kernel does a call. It is
 * Hopper's (grouped_hopper.cuh) where the GPU has wgmma and rows are whole 16-byte pieces,
 * otherwise the portable one (grouped_portable.cuh). Both read the groups' offsets on the device.
 */
#include "trainer/ops/cuda/grouped_gemm.cuh"
#include "trainer/ops/cuda/grouped_portable.cuh"

/* Each block takes 48 KiB for its stages, and each thread about 100 registers. */
enum { PORTABLE_BLOCKS_PER_SM = 2 };

template <int MODE, bool ALIGNED>
static __global__ void __launch_bounds__(PORTABLE_THREADS, PORTABLE_BLOCKS_PER_SM)
    grouped_portable_kernel(grouped_work w, const int32_t *offset, grouped_arrays p)
{
    SHARED_BYTES(shared);
    portable_block<MODE, ALIGNED>(w, shared, offset, p.a, p.b, p.out);
}

template <int MODE, bool ALIGNED> static status portable(stream *s, const grouped_gemm_args *a)
{
    grouped_work w = grouped_work_of(a, PORTABLE_TILE_N, PORTABLE_STEP, 1);
    int64_t blocks = cuda_facts_of(s)->multiprocessors * (int64_t)PORTABLE_BLOCKS_PER_SM;
    int64_t tiles = grouped_tiles_most(&w);
    size_t shared = PORTABLE_TABLES + 2 * ((size_t)w.experts + 1) * sizeof(int32_t);
    cudaError_t error =
        cudaFuncSetAttribute(grouped_portable_kernel<MODE, ALIGNED>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error != cudaSuccess)
        return FAIL(ST_BAD_DEVICE, "grouped_gemm: %zu bytes of shared memory: %s", shared,
                    cudaGetErrorString(error));
    return LAUNCH(s, (grouped_portable_kernel<MODE, ALIGNED>),
                  grid_of(tiles < blocks ? tiles : blocks), PORTABLE_THREADS, shared, w, a->offset,
                  grouped_arrays_of(a));
}

template <bool ALIGNED> static status portable_mode(stream *s, const grouped_gemm_args *a)
{
    switch (a->mode) {
    case GROUPED_FWD:
        return portable<GROUPED_FWD, ALIGNED>(s, a);
    case GROUPED_DGRAD:
        return portable<GROUPED_DGRAD, ALIGNED>(s, a);
    default:
        return portable<GROUPED_WGRAD, ALIGNED>(s, a);
    }
}

static status check_grouped(const grouped_gemm_args *a)
{
    if (a->mode != GROUPED_FWD && a->mode != GROUPED_DGRAD && a->mode != GROUPED_WGRAD)
        return FAIL(ST_BAD_INPUT, "grouped_gemm: there is no mode %d", a->mode);
    if (a->k <= 0 || a->n <= 0 || a->k > INT32_MAX / 2 || a->n > INT32_MAX / 2)
        return FAIL(
            ST_BAD_INPUT,
            "grouped_gemm: the widths are %lld and %lld; they must be positive and fit 30 bits",
            (long long)a->k, (long long)a->n);
    if (a->experts > GROUPED_EXPERTS_MAX || a->rows_cap > INT32_MAX / 2)
        return FAIL(
            ST_BAD_INPUT,
            "grouped_gemm: there are %lld experts and %lld rows; at most %d and 2^30 are possible",
            (long long)a->experts, (long long)a->rows_cap, GROUPED_EXPERTS_MAX);
    return grouped_gemm_check_gated(a);
}

extern "C" status cuda_grouped_gemm(stream *s, const grouped_gemm_args *a)
{
    if (a->experts <= 0 || a->rows_cap <= 0)
        return ST_OK;
    status st = check_grouped(a);
    if (st != ST_OK)
        return st;
    if (!grouped_aligned(a))
        return portable_mode<false>(s, a);
#ifdef __CUDACC__ /* a host cannot run this kind of tensor core */
    if (cuda_facts_of(s)->sm == 90)
        return grouped_gemm_hopper(s, a);
#endif
    return portable_mode<true>(s, a);
}
