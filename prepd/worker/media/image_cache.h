/* SPDX-License-Identifier: Apache-2.0 */
/* image_cache.h: the patches of pictures that were decoded before, in one file that all workers of
 * a machine share (cache.folder). It is optional: what is not there, or not as it was written, is
 * decoded again.
 *
 * The key of an entry is a hash of everything that its patches follow from: the file's bytes, the
 * grid, the resampler, the decoder's fingerprint and its limits. It also has the size in pixels
 * that the index recorded, since only a picture of that size is kept: a file that changed to
 * another size is not found, decoded, and refused, even if other files with the same bytes are in
 * the cache.
 *
 * The file is a ring of fixed size (cache.bytes), in which new entries overwrite the oldest.
 * Nothing is locked: every entry carries its key and a checksum, so a reader that finds another
 * entry, half of one or noise has simply missed. The file may be deleted or damaged at any time,
 * and two writers in the same place cost each other a miss.
 *
 * It is opened before the sandbox, which still allows reading and writing open files at offsets. */
#ifndef TESSERA_PREPD_WORKER_MEDIA_IMAGE_CACHE_H
#define TESSERA_PREPD_WORKER_MEDIA_IMAGE_CACHE_H

#include <stdbool.h>

#include "common/base/hash.h"
#include "common/base/span.h"
#include "common/conf/conf.h"
#include "prepd/sample/fit.h"

typedef struct image_cache image_cache;

/* Opens the cache. decoder is the fingerprint of the picture decoder. *out is NULL if cache.folder
 * is empty, or, with a warning, if the disk has no room for a new file. A folder that cannot be
 * used is an error, since the user asked for it. */
WARN_UNUSED status image_cache_open(const conf *options, hash128 decoder, image_cache **out);
void image_cache_close(image_cache **held);

/* The key of a picture's patches. file holds its bytes; height and width are as the index recorded
 * them, -1 if it did not. */
hash128 image_cache_key(const image_cache *cache, span file, int64_t height, int64_t width,
                        fit_grid grid, const conf *options);
/* True if the patches were found and patches [bytes] is filled; otherwise its contents are
 * undefined. */
bool image_cache_get(image_cache *cache, hash128 key, uint8_t *patches, size_t bytes);
/* Keeps patches, if there is room in the ring and on the disk. */
void image_cache_put(image_cache *cache, hash128 key, const uint8_t *patches, size_t bytes);

#endif
