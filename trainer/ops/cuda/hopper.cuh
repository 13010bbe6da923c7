/* SPDX-License-Identifier: Apache-2.0 */
/* hopper.cuh: the instructions of sm_90a that tensor-core kernels are made of, one function each:
 * mbarriers, the bulk tensor copy engine (TMA), products of warpgroups (wgmma), clusters, and
 * registers that move between warpgroups. Section numbers are those of the PTX ISA 9.0, chapter 9.7
 * "Instructions".
 *
 * Pointers are generic and point to shared memory unless a comment says otherwise.
 * tests/simt/hopper_host.h has a host version of every function under the same name, so that a
 * kernel's control flow and addresses can run without a GPU. */
#ifndef TESSERA_TRAINER_OPS_CUDA_HOPPER_CUH
#define TESSERA_TRAINER_OPS_CUDA_HOPPER_CUH

#include <cuda.h> /* for CUtensorMap; no symbol of libcuda is used */
#include <stdint.h>

#include "trainer/ops/cuda/waits.cuh"

static __device__ __forceinline__ uint32_t hopper_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* --- mbarrier (9.7.13.15):
 * a phase ends when `count` arrivals and all expected bytes are in. --- */

static __device__ __forceinline__ void barrier_init(uint64_t *b, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(hopper_address(b)), "r"(count)
                 : "memory");
}

/* To be called after all barrier_init, before other blocks of the cluster or TMA may use the
 * barriers. */
static __device__ __forceinline__ void barrier_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives, and makes this phase expect so many bytes of TMA. */
static __device__ __forceinline__ void barrier_expect(uint64_t *b, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(hopper_address(b)),
                 "r"(bytes)
                 : "memory");
}

/* Arrives at the barrier at the same place in block `rank` of the cluster. It orders nothing but
 * what the barrier itself does: with .release.cluster the compiler puts a fence of the whole GPU
 * before every arrival, and all that is to be ordered here are reads by wgmma, which have ended
 * when their group was waited for. */
static __device__ __forceinline__ void barrier_arrive_at(uint64_t *b, uint32_t rank)
{
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
                 "}\n" ::"r"(hopper_address(b)),
                 "r"(rank)
                 : "memory");
}

/* Whether the phase of this parity has ended, which the hardware waits for a moment. */
static __device__ __forceinline__ bool barrier_try(uint64_t *b, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}\n"
                 : "=r"(done)
                 : "r"(hopper_address(b)), "r"(parity)
                 : "memory");
    return done != 0;
}

/* Time in units of 2^32 ns. */
static __device__ __forceinline__ uint32_t hopper_time(void)
{
    uint32_t high;
    asm volatile("mov.u32 %0, %%globaltimer_hi;" : "=r"(high));
    return high;
}

/* Waits until the phase of this parity has ended. The phase before the first one has parity 1. A
 * wait of more than 17 s will never end: then it says so in *stuck, and the kernel traps. The loop
 * stands apart from the way through, so counting costs nothing where there is nothing to wait for.
 */
static __device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity,
                                                    kernel_stuck *stuck, int kernel, int barrier)
{
    enum { LONGEST = 4 };
    if (barrier_try(b, parity))
        return;
    const uint32_t since = hopper_time();
    while (!barrier_try(b, parity)) {
        if (hopper_time() - since <= LONGEST)
            continue;
        give_up_wait(stuck, {kernel, (int32_t)blockIdx.x, barrier, (int32_t)parity});
    }
}

/* --- order (9.7.13.1, .3, .4) --- */

/* `threads` threads of the block meet at barrier `id` (0 is __syncthreads'). */
static __device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* A barrier of all threads in the cluster's blocks. */
static __device__ __forceinline__ void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Makes what this thread stored to shared memory visible to TMA and wgmma after the next
 * barrier. */
static __device__ __forceinline__ void fence_async_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* --- TMA (9.7.9.25.5) --- */

static __device__ __forceinline__ void tma_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Loads a box of the tensor into this block's shared memory; its bytes count on b. What lies
 * outside the tensor becomes zero and counts too. */
static __device__ __forceinline__ void tma_load(void *to, const CUtensorMap *map, uint64_t *b,
                                                int32_t c0, int32_t c1, int32_t c2)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(hopper_address(to)),
                 "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(hopper_address(b))
                 : "memory");
}

/* Loads the same box into the same place in every block of `blocks` (a bit each), and counts it on
 * each block's b. */
static __device__ __forceinline__ void tma_load_shared(void *to, const CUtensorMap *map,
                                                       uint64_t *b, int32_t c0, int32_t c1,
                                                       int32_t c2, uint16_t blocks)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(hopper_address(to)),
        "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(hopper_address(b)), "h"(blocks)
        : "memory");
}

/* --- registers of a warpgroup (9.7.19.5) --- */

template <int N> static __device__ __forceinline__ void registers_give(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_take(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* --- wgmma (9.7.15) --- */

/* To be called before the first product, and after accumulator registers were used otherwise. */
static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Makes the products since the last commit a group. */
static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most N groups are unfinished. */
template <int N> static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* To be called after wgmma_wait: it orders what reads d after the wait. The products write d
 * without the compiler knowing, and the wait names none of its registers. */
static __device__ __forceinline__ void wgmma_results(float (&d)[128])
{
#pragma unroll
    for (int i = 0; i < 128; i++)
        asm volatile("" : "+f"(d[i]));
}

/* d [64, 256] f32 = (add ? d : 0) + A [64, 16] B [16, 256], bf16 in shared memory by descriptor.
 * TRANS_A, TRANS_B: the operand is M- or N-major instead of K-major. */
template <int TRANS_A, int TRANS_B>
static __device__ __forceinline__ void wgmma_64x256x16(float (&d)[128], uint64_t a, uint64_t b,
                                                       int add)
{
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
        "%111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
        "%127"
        "}, %128, %129, add, 1, 1, %131, %132;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
          "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
          "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),
          "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
          "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),
          "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]),
          "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]),
          "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
          "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]),
          "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(add), "n"(TRANS_A), "n"(TRANS_B));
}

/* --- reductions to device memory (9.7.13.8) --- */

/* p[0..3] += v without waiting; p is aligned to 16 bytes. With one addition per element the result
 * is deterministic. */
static __device__ __forceinline__ void global_add4(float *p, float v0, float v1, float v2, float v3)
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v0),
                 "f"(v1), "f"(v2), "f"(v3)
                 : "memory");
}

#endif
