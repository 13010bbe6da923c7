/* dequantise.c: expands blocks of codes on the CPU (weight_blocks.h). */
#include "trainer/ops/cpu/cpu_ops.h"

#include <string.h>

/* The two values of each byte of an nf4 block, as shares of the scale. */
static void fill_pairs(float pair[256][2])
{
    for (int i = 0; i < 256; i++) {
        pair[i][0] = weight_level(i >> 4);
        pair[i][1] = weight_level(i & (WEIGHT_LEVELS - 1));
    }
}

static void expand_block(weight_form form, float pair[256][2], const uint8_t *block, int64_t count,
                         real *y)
{
    const uint8_t *codes = block + WEIGHT_SCALE;
    float scale;
    memcpy(&scale, block, WEIGHT_SCALE);
    if (form == WEIGHT_INT8) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = (real)((float)(int8_t)codes[i] * scale);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        y[i] = (real)(pair[codes[i / 2]][i % 2] * scale);
}

static void expand_rows(const void *context, part todo)
{
    const dequantise_args *args = context;
    const int64_t wide = weight_row_blocks(args->n), size = weight_block_bytes(args->form);
    float pair[256][2];
    fill_pairs(pair);
    for (int64_t i = todo.begin; i < todo.end; i++)
        for (int64_t j = 0; j < wide; j++)
            expand_block(args->form, pair, (const uint8_t *)args->blocks + (i * wide + j) * size,
                         min_i64(WEIGHT_BLOCK, args->n - j * WEIGHT_BLOCK),
                         (real *)args->y + i * args->n + j * WEIGHT_BLOCK);
}

status CPU_OP(dequantise)(stream *queue, const dequantise_args *args)
{
    cpu_run(queue, args->rows, args->n, expand_rows, args);
    return ST_OK;
}
