/* filter.h: the reversible filter in front of the entropy coder of image parts. Private to proto.
 *
 * A patch has the columns (channel, frame, y, x), 16 x 16 bytes per plane; an image patch has one
 * frame, a video patch two. Red and blue lose green; then every plane is predicted inside the
 * patch: left + above - above left, where a missing neighbour counts as zero. All modulo 256. That
 * prediction is a difference along x and then along y, so undoing it is two running sums. */
#ifndef TESSERA_PROTO_FILTER_H
#define TESSERA_PROTO_FILTER_H

#include <stdint.h>

/* in and out [n_patches, n_frames * 768] u8, not overlapping. */
void filter_plane_apply(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out);
void filter_plane_undo(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out);

#endif
