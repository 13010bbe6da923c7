/* patch_cutter.h: one patch out of a picture, for several instruction sets. Private to patch*.c and
 * its test. */
#ifndef TESSERA_PREPD_SAMPLE_PATCH_CUTTER_H
#define TESSERA_PREPD_SAMPLE_PATCH_CUTTER_H

#include <stdint.h>

/* from: the patch's first pixel in rows of stride bytes; to [768]: channel, y, x. */
typedef void (*patch_cutter)(const uint8_t *from, int64_t stride, uint8_t *to);

void patch_cut_plain(const uint8_t *from, int64_t stride, uint8_t *to); /* the reference */
extern const patch_cutter patch_cut_avx2; /* NULL where the compiler has no AVX2 */

/* from: the same of three planes, luma and the two colour differences of a JPEG; stride theirs. */
typedef void (*patch_ycc_cutter)(const uint8_t *const from[3], int64_t stride, uint8_t *to);

void patch_cut_ycc_plain(const uint8_t *const from[3], int64_t stride, uint8_t *to);
extern const patch_ycc_cutter patch_cut_ycc_avx2;

/* The best that this processor has. */
patch_cutter patch_cutter_here(void);
patch_ycc_cutter patch_ycc_cutter_here(void);

#endif
