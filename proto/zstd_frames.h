/* zstd_frames.h: one-shot zstd frames, made and opened. Proto's door to zstd; private to it. */
#ifndef TESSERA_PROTO_ZSTD_FRAMES_H
#define TESSERA_PROTO_ZSTD_FRAMES_H

#include "common/base/span.h"
#include "common/base/status.h"

typedef struct zstd_frames zstd_frames; /* contexts of one thread */

WARN_UNUSED status zstd_frames_new(zstd_frames **out);
void zstd_frames_free(zstd_frames **p);

/* Compresses with content size. The result lies in p until its next call.
 * entropy_only: no matches are looked for, only literals Huffman-coded: right for filtered pixels
 * (facts: ratio 2.2 at twice the speed of level 1), and no checksum of zstd's, since image parts
 * bring a hash of their pixels; other frames have it. */
WARN_UNUSED status zstd_frames_compress(zstd_frames *p, span in, int entropy_only, span *out);

/* Checks that in is exactly one frame that declares `size` bytes of content and a window of at
 * most 2^27, before the caller takes memory for it. what names the part in errors. */
WARN_UNUSED status zstd_frames_check(span in, uint64_t size, const char *peer, const char *what);
/* Opens a checked frame into out [size]. */
WARN_UNUSED status zstd_frames_open(zstd_frames *p, span in, uint8_t *out, uint64_t size,
                                    const char *peer, const char *what);

#endif
