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
#ifndef TESSERA_PROTO_FILTER_H
#define TESSERA_PROTO_FILTER_H

#include <stdint.h>

/* in and out are [n_patches, n_frames * 768] bytes and must not overlap. */
void filter_plane_apply(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out);
void filter_plane_undo(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out);

#endif
