/* weight_codes.c: codes of frozen matrices on the host (weight_codes.h). */
#include "trainer/model/weight_codes.h"

#include <math.h>
#include <string.h>

enum { INT8_TOP = 127 };

/* A code is that of the level nearest to a share of the scale: how many of the middles between
 * neighbouring levels lie below it. */
static void encode_nf4(const float *from, int64_t count, float largest, uint8_t *codes)
{
    float share[WEIGHT_BLOCK];
    uint32_t code[WEIGHT_BLOCK] = {0};
    for (int64_t i = 0; i < WEIGHT_BLOCK; i++)
        share[i] = i < count && largest > 0 ? from[i] / largest : 0;
    for (int i = 0; i < WEIGHT_LEVELS - 1; i++) {
        const float middle = (weight_level(i) + weight_level(i + 1)) / 2;
        for (int64_t j = 0; j < WEIGHT_BLOCK; j++)
            code[j] += share[j] > middle;
    }
    for (int64_t i = 0; i < WEIGHT_BLOCK / 2; i++)
        codes[i] = (uint8_t)(code[2 * i] << 4 | code[2 * i + 1]);
}

static void encode_int8(const float *from, int64_t count, float scale, uint8_t *codes)
{
    for (int64_t i = 0; i < WEIGHT_BLOCK; i++) {
        const float code = i < count && scale > 0 ? rintf(from[i] / scale) : 0;
        const float bounded = code > INT8_TOP ? INT8_TOP : code < -INT8_TOP ? -INT8_TOP : code;
        codes[i] = (uint8_t)(int8_t)bounded;
    }
}

bool weight_encode(weight_form form, const float *from, int64_t count, uint8_t *block)
{
    float largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; i++) {
        const float size = fabsf(from[i]);
        finite &= isfinite(size) != 0;
        largest = size > largest ? size : largest;
    }
    if (!finite)
        return false;
    const float scale = form == WEIGHT_INT8 ? largest / INT8_TOP : largest;
    memcpy(block, &scale, WEIGHT_SCALE);
    if (form == WEIGHT_INT8)
        encode_int8(from, count, scale, block + WEIGHT_SCALE);
    else
        encode_nf4(from, count, scale, block + WEIGHT_SCALE);
    return true;
}

void weight_decode(weight_form form, const uint8_t *block, int64_t count, float *to)
{
    const uint8_t *codes = block + WEIGHT_SCALE;
    float scale;
    memcpy(&scale, block, WEIGHT_SCALE);
    for (int64_t i = 0; i < count; i++) {
        if (form == WEIGHT_INT8)
            to[i] = (float)(int8_t)codes[i] * scale;
        else
            to[i] = weight_level(codes[i / 2] >> (i % 2 ? 0 : 4) & (WEIGHT_LEVELS - 1)) * scale;
    }
}
