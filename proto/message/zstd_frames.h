/* SPDX-License-Identifier: Apache-2.0 */
/* zstd_frames.h: one-shot zstd frames, compressed and opened. The only file of proto that includes
 * zstd is zstd_frames.c; private to proto. */
#ifndef TESSERA_PROTO_MESSAGE_ZSTD_FRAMES_H
#define TESSERA_PROTO_MESSAGE_ZSTD_FRAMES_H

#include "common/base/span.h"
#include "common/base/status.h"

/* The contexts of one thread, and the buffer that holds its last result. */
typedef struct zstd_frames zstd_frames;

WARN_UNUSED status zstd_frames_new(zstd_frames **out);
void zstd_frames_free(zstd_frames **held);

/* Compresses `in` into a frame that declares its content size. *out is valid until the next call.
 *
 * entropy_only (not 0): codes bytes by their frequencies alone (Huffman) and searches for no
 * repetitions. That is right for filtered pixels, which it makes less than half as large at twice
 * the speed of level 1. Such frames have no checksum of zstd's, since an image part has a hash of
 * its pixels; all other frames have one. */
WARN_UNUSED status zstd_frames_compress(zstd_frames *contexts, span in, int entropy_only,
                                        span *out);

/* Checks, before the caller allocates, that `in` is exactly one frame which declares `size` bytes
 * of content, a window of at most 2^27 bytes and no dictionary. ST_PROTOCOL names the peer and the
 * part (what). */
WARN_UNUSED status zstd_frames_check(span in, uint64_t size, const char *peer, const char *what);
/* Decompresses a checked frame into out [size]. */
WARN_UNUSED status zstd_frames_open(zstd_frames *contexts, span in, uint8_t *out, uint64_t size,
                                    const char *peer, const char *what);

#endif
