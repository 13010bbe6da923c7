/* optim_chunk.h: the chunks that sum_squares and adamw cut their lists into (optim_list). */
#ifndef TESSERA_TRAINER_OPS_CPU_OPTIM_CHUNK_H
#define TESSERA_TRAINER_OPS_CPU_OPTIM_CHUNK_H

#include "trainer/ops/cpu/cpu_ops.h"

/* A chunk of a list: the elements [begin, end) of one of its tensors. */
typedef struct chunk {
    const optim_tensor *tensor;
    int64_t begin, end;
} chunk;

/* The list's chunk `index`, counted from the list's first chunk. */
static inline chunk chunk_of(const optim_list *list, int64_t index)
{
    /* The binary search ends at the last tensor that begins at or before the chunk. */
    int64_t low = 0, high = list->n_tensors;
    index += list->first_chunk;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (list->tensor[middle].first_chunk <= index)
            low = middle;
        else
            high = middle;
    }
    const optim_tensor *tensor = list->tensor + low;
    int64_t begin = (index - tensor->first_chunk) * OPTIM_CHUNK;
    return (chunk){tensor, begin, min_i64(begin + OPTIM_CHUNK, tensor->n)};
}

#endif
