/* SPDX-License-Identifier: Apache-2.0 */
/* piece.cuh: N bf16 of a row as they lie in memory. N is 8, or 1 if rows or addresses do not
 * allow 16-byte accesses. They are held packed, so that a thread can have several pieces under way
 * in few registers. */
#ifndef TESSERA_TRAINER_OPS_CUDA_PIECE_CUH
#define TESSERA_TRAINER_OPS_CUDA_PIECE_CUH

#include "trainer/ops/cuda/kernel_launch.cuh"

template <int N> struct piece;
template <> struct piece<VECTOR> {
    uint4 bits;
};
template <> struct piece<1> {
    bf16 x;
};

template <int N> static __device__ __forceinline__ piece<N> load_piece(const bf16 *p)
{
    if constexpr (N == VECTOR)
        return {__ldg((const uint4 *)p)};
    else
        return {*p};
}

static __device__ __forceinline__ void unpack(float (&out)[VECTOR], piece<VECTOR> from)
{
    unpack8(out, from.bits);
}

static __device__ __forceinline__ void unpack(float (&out)[1], piece<1> from)
{
    out[0] = to_float(from.x);
}

static __device__ __forceinline__ piece<VECTOR> pack(const float (&in)[VECTOR])
{
    return {pack8(in)};
}

static __device__ __forceinline__ piece<1> pack(const float (&in)[1])
{
    return {to_bf16(in[0])};
}

#endif
