/* optim_list.cuh: the chunks that sum_squares and adamw cut their lists into (optim_list), and the
 * blocks of threads that take them in turn. */
#ifndef TESSERA_TRAINER_OPS_CUDA_OPTIM_LIST_CUH
#define TESSERA_TRAINER_OPS_CUDA_OPTIM_LIST_CUH

#include "trainer/ops/cuda/kernel_launch.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / LANES,
    QUAD = 4,         /* floats in a 16-byte access */
    BLOCKS = 132 * 16 /* blocks that take turns: twice what 132 multiprocessors hold */
};

static dim3 grid_of_chunks(const optim_list &list)
{
    return grid_of(list.n_chunks < BLOCKS ? list.n_chunks : (int64_t)BLOCKS);
}

/* Chunk i of a list, counted from the list's first chunk: the elements [begin, end) of a tensor. */
typedef struct chunk {
    optim_tensor tensor;
    int64_t begin, end;
} chunk;

static __device__ inline chunk chunk_of(const optim_list &list, int64_t index)
{
    /* The binary search ends at the last tensor that begins at or before the chunk. */
    int64_t low = 0, high = list.n_tensors;
    index += list.first_chunk;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (list.tensor[middle].first_chunk <= index)
            low = middle;
        else
            high = middle;
    }
    chunk range = {list.tensor[low], 0, 0};
    range.begin = (index - range.tensor.first_chunk) * OPTIM_CHUNK;
    range.end = min(range.begin + OPTIM_CHUNK, range.tensor.n);
    return range;
}

#endif
