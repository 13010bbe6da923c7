/* SPDX-License-Identifier: Apache-2.0 */
/* filter.h: a reversible filter that makes the pixels of image parts easier to compress. Private to
 * proto.
 *
 * A patch holds 16 x 16 bytes per plane, its columns in the order (channel, frame, y, x); an image
 * patch has one frame, a video patch two. First green is subtracted from red and blue, since the
 * three are alike. Then each plane p becomes its difference from a plane through its neighbours:
 *
 *   d[y, x] = p[y, x] - (p[y, x-1] + p[y-1, x] - p[y-1, x-1])       all modulo 256
 *
 * where a neighbour outside the patch counts as 0. That is a difference along x followed by one
 * along y, so the filter is undone by two running sums and adding green again. */
#ifndef TESSERA_PROTO_MESSAGE_FILTER_H
#define TESSERA_PROTO_MESSAGE_FILTER_H

#include <stdint.h>

enum { FILTER_SIDE = 16, FILTER_PLANE = FILTER_SIDE * FILTER_SIDE };

/* in and out are [n_patches, n_frames * 768] bytes and must not overlap. */
void filter_plane_apply(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out);
void filter_plane_undo(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out);

/* An implementation. Both functions work on one frame of a patch. Its red, green and blue planes
 * [16, 16] begin `channel` bytes apart, in the input as in the output. All give the same bytes: a
 * test compares filter_avx2 with filter_plain. */
typedef struct filter_kernels {
    void (*apply)(const uint8_t *in, int64_t channel, uint8_t *out);
    void (*undo)(const uint8_t *in, int64_t channel, uint8_t *out);
} filter_kernels;

extern const filter_kernels filter_plain; /* plain C, the reference */
extern const filter_kernels filter_avx2;  /* NULL members where there is no AVX2 */

#endif
