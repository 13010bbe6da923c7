/* patch_cutter.h: the functions that cut a single patch, for several instruction sets. All give the
 * same bytes. Private to patch*.c and their test. */
#ifndef TESSERA_PREPD_SAMPLE_PATCH_CUTTER_H
#define TESSERA_PREPD_SAMPLE_PATCH_CUTTER_H

#include <stdint.h>

/* Cuts the patch whose first pixel is at `from`, in rows of `stride` bytes, to `to` [768], in the
 * order channel, y, x. */
typedef void (*patch_cutter)(const uint8_t *from, int64_t stride, uint8_t *to);

void patch_cut_plain(const uint8_t *from, int64_t stride, uint8_t *to); /* defines the result */
extern const patch_cutter patch_cut_avx2; /* NULL if the compiler has no AVX2 */

/* The same from three planes, luma and the two colour differences of a JPEG, in rows of `stride`
 * bytes. */
typedef void (*patch_ycc_cutter)(const uint8_t *const from[3], int64_t stride, uint8_t *to);

void patch_cut_ycc_plain(const uint8_t *const from[3], int64_t stride, uint8_t *to);
extern const patch_ycc_cutter patch_cut_ycc_avx2; /* NULL if the compiler has no AVX2 */

/* The fastest that this processor can run. */
patch_cutter patch_cutter_here(void);
patch_ycc_cutter patch_ycc_cutter_here(void);

#endif
