/* image_cache.h: patches of pictures that were decoded before, in one file that the workers of a
 * machine share (cache.folder). Optional: what is not there, or not as it was written, is decoded.
 *
 * An entry is named by what its patches follow from: the file's bytes, the grid, the resampler, the
 * decoder (its fingerprint) and its limits; and by the size in pixels that the index recorded,
 * since only a picture of that size is kept: one that became another since has missed and is
 * refused, whatever else shows the same bytes. The file is a ring of fixed size (cache.bytes): the
 * oldest entries are written over. Nothing is locked: every entry has its name and a checksum
 * beside it, and a reader that finds another entry, half of one or noise has missed. So the file
 * may be deleted or damaged at any time, and two writers in one place cost themselves a miss.
 *
 * It is opened before the sandbox, which then allows reading and writing at places of it. */
#ifndef TESSERA_PREPD_WORKER_IMAGE_CACHE_H
#define TESSERA_PREPD_WORKER_IMAGE_CACHE_H

#include <stdbool.h>

#include "common/conf/conf.h"
#include "common/base/hash.h"
#include "common/base/span.h"
#include "prepd/sample/fit.h"

typedef struct image_cache image_cache;

/* *out NULL where cache.folder is empty. A folder that cannot be used is an error: it was asked
 * for. On a disk without room for a new file: NULL and a warning. decoder: the fingerprint of what
 * decodes. */
WARN_UNUSED status image_cache_open(const conf *c, hash128 decoder, image_cache **out);
void image_cache_close(image_cache **x);

/* The name of a picture's patches. height, width: as recorded; -1: they are not. */
hash128 image_cache_key(const image_cache *x, span file, int64_t height, int64_t width,
                        fit_grid grid, const conf *c);
/* True: patches [bytes] is filled. False: it holds anything. */
bool image_cache_get(image_cache *x, hash128 key, uint8_t *patches, size_t bytes);
/* Keeps them, if there is room in the ring and on the disk. */
void image_cache_put(image_cache *x, hash128 key, const uint8_t *patches, size_t bytes);

#endif
