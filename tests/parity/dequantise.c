/* SPDX-License-Identifier: Apache-2.0 */
/* dequantise.c: cases of frozen matrices in blocks of codes. Scales and codes are drawn as bytes;
 * what they stand for is worked out here from the published table, bit for bit but for the rounding
 * to the device's type. */
#include "tests/nf4_table.h"
#include "tests/parity/parity.h"

static double share_of(bool nf4, const uint8_t *codes, int64_t index)
{
    if (!nf4)
        return codes[index] < 128 ? codes[index] : codes[index] - 256.0;
    return nf4_published[index % 2 ? codes[index / 2] % 16 : codes[index / 2] / 16];
}

static void dequantise_case(parity *test, const int64_t *shape)
{
    const bool nf4 = shape[2];
    const int64_t rows = shape[0], n = shape[1], wide = (n + 63) / 64, size = nf4 ? 36 : 68;
    const size_t bytes = (size_t)(rows * wide * size);
    uint8_t *blocks = (uint8_t *)parity_zeros(test, (int64_t)(bytes / sizeof(double)) + 1);
    double *want = parity_zeros(test, rows * n);
    tensor y = parity_tensor(test, rows * n, 1);
    for (size_t i = 0; i < bytes; i++)
        blocks[i] = (uint8_t)parity_below(test, 256);
    for (int64_t k = 0; k < rows * wide; k++) {
        const float scale = k % 5 == 4 ? 0 : (float)exp(parity_uniform(test, -6, 1));
        memcpy(blocks + k * size, &scale, sizeof scale);
        for (int64_t i = 0; i < 64 && k % wide * 64 + i < n; i++)
            want[k / wide * n + k % wide * 64 + i] =
                (double)((float)share_of(nf4, blocks + k * size + 4, i) * scale);
    }
    PARITY_RUN(test, op_dequantise(test->queue,
                                   &(dequantise_args){.form = nf4 ? WEIGHT_NF4 : WEIGHT_INT8,
                                                      .rows = rows,
                                                      .n = n,
                                                      .blocks = parity_bytes(test, blocks, bytes),
                                                      .y = y.dev}));
    parity_expect(test, "y", y, want, 0);
}

const parity_case parity_dequantise[] = {
    {"dequantise", "empty", dequantise_case, {0, 64, 1}},
    {"dequantise", "empty int8", dequantise_case, {0, 131, 0}},
    {"dequantise", "empty rows nf4", dequantise_case, {3, 0, 1}},
    {"dequantise", "empty rows int8", dequantise_case, {3, 0, 0}},
    {"dequantise", "one nf4", dequantise_case, {1, 1, 1}},
    {"dequantise", "one int8", dequantise_case, {1, 1, 0}},
    {"dequantise", "ragged nf4", dequantise_case, {5, 131, 1}},
    {"dequantise", "ragged int8", dequantise_case, {5, 131, 0}},
    {"dequantise", "blocks nf4", dequantise_case, {9, 192, 1}},
    {"dequantise", "blocks int8", dequantise_case, {9, 192, 0}},
    {"dequantise", "real nf4", dequantise_case, {768, 2048, 1}},
    {"dequantise", "real int8", dequantise_case, {768, 2048, 0}},
    {NULL},
};
