/* SPDX-License-Identifier: Apache-2.0 */
/* sigmoid.cuh: the sigmoid 1 / (1 + e^-x) and SwiGLU. The activations and the product that ends in
 * SwiGLU share them, so that both give the same bits. */
#ifndef TESSERA_TRAINER_OPS_CUDA_SIGMOID_CUH
#define TESSERA_TRAINER_OPS_CUDA_SIGMOID_CUH

/* It reaches 0 and 1 at the far ends: the fast quotient of 1 by a huge number is 0. */
static __device__ __forceinline__ float sigmoid(float x)
{
    return __fdividef(1, 1 + __expf(-x));
}

/* SwiGLU of one gate and its up: silu(gate) up. */
static __device__ __forceinline__ float swiglu(float gate, float up)
{
    return up * (gate * sigmoid(gate));
}

#endif
