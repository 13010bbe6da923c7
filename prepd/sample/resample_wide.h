/* SPDX-License-Identifier: Apache-2.0 */
/* resample_wide.h: the two wide kernels, written once for vectors of any number of 16-byte lanes.
 * One file per instruction set defines `vector`, LANES and the operations, and then includes this.
 * Every operation works inside a lane, so it is enough to understand one lane. */
#ifndef TESSERA_PREPD_SAMPLE_RESAMPLE_WIDE_H
#define TESSERA_PREPD_SAMPLE_RESAMPLE_WIDE_H

/* A lane makes one output pixel. The input pixels lie side by side (RGBRGB..). A shuffle brings two
 * neighbours together as 16-bit numbers (R0 R1 G0 G1 B0 B1), which are multiplied by the weights
 * (w0, w1) and added in pairs: this is two taps of three channels. The fourth sum stays zero. */
static int32_t wide_width(const axis *across, const uint8_t *in, uint8_t *out)
{
    const vector taps_01 = in_each_lane(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    const vector taps_23 = in_each_lane(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
    const vector tap_4 =
        in_each_lane(12, -1, -1, -1, 13, -1, -1, -1, 14, -1, -1, -1, -1, -1, -1, -1);
    const vector half = all_32((1 << across->bits) >> 1);
    const int32_t end = across->n_out / LANES * LANES;
    const int32_t *pairs = across->pairs;
    for (int32_t i = 0; i < end; i += LANES) {
        vector sum = half;
        for (int32_t step = 0; step < across->steps; step++, pairs += STEP_PAIRS * 4 * LANES) {
            const vector taps = load_lanes(in + step * STEP_TAPS * 3, across->first + i);
            sum = add_products(sum, shuffle_bytes(taps, taps_01), load_vector(pairs));
            sum = add_products(sum, shuffle_bytes(taps, taps_23), load_vector(pairs + 4 * LANES));
            sum = add_products(sum, shuffle_bytes(taps, tap_4), load_vector(pairs + 8 * LANES));
        }
        store_pixels(out + (size_t)i * 3, shift_32(sum, across->bits));
    }
    return end;
}

/* Two input rows are interleaved byte by byte and widened with zeros to (a0, b0), (a1, b1), .. Each
 * pair is multiplied by the weights (w0, w1) and added. Unpacking twice and then packing twice
 * restores the order of the bytes. */
static size_t wide_height(const int32_t *pairs, int32_t taps, int bits, const uint8_t *rows,
                          size_t bytes, uint8_t *out)
{
    const vector zero = all_32(0), half = all_32((1 << bits) >> 1);
    const size_t end = bytes / sizeof(vector) * sizeof(vector);
    for (size_t at = 0; at < end; at += sizeof(vector)) {
        vector s0 = half, s1 = half, s2 = half, s3 = half;
        for (int32_t k = 0; k < taps; k += 2) {
            const uint8_t *row = rows + (size_t)k * bytes + at;
            const vector weights = all_32(pairs[k / 2]);
            const vector left = load_vector(row),
                         right = load_vector(k + 1 < taps ? row + bytes : row);
            const vector low = unpack_low(left, right), high = unpack_high(left, right);
            s0 = add_products(s0, unpack_low(low, zero), weights);
            s1 = add_products(s1, unpack_high(low, zero), weights);
            s2 = add_products(s2, unpack_low(high, zero), weights);
            s3 = add_products(s3, unpack_high(high, zero), weights);
        }
        store_vector(out + at, pack_to_bytes(pack_to_16(shift_32(s0, bits), shift_32(s1, bits)),
                                             pack_to_16(shift_32(s2, bits), shift_32(s3, bits))));
    }
    return end;
}

#endif
