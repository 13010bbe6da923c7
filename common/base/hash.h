/* hash.h: XXH3-128, for payload checksums, digests and identities of data (not for security).
 * The only door to xxhash. */
#ifndef TESSERA_COMMON_BASE_HASH_H
#define TESSERA_COMMON_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Stored and printed in canonical (big-endian) order, so every machine shows the same text. */
typedef struct hash128 {
    uint8_t bytes[16];
} hash128;

typedef struct hasher hasher; /* streaming state */

enum { HASH_TEXT = 33 }; /* 32 hex digits and the end */

hash128 hash_bytes(const void *data, size_t size);
/* XXH3-128 of (a || b): one link of a digest chain. */
hash128 hash_chain(hash128 a, hash128 b);
bool hash_equal(hash128 a, hash128 b);
void hash_print(hash128 h, char out[HASH_TEXT]);
bool hash_parse(const char *text, hash128 *out); /* false unless 32 hex digits */
WARN_UNUSED status hash_file(const char *path, hash128 *out);

WARN_UNUSED status hasher_new(hasher **out);
void hasher_free(hasher **h);
void hasher_reset(hasher *h);
void hasher_add(hasher *h, const void *data, size_t size);
void hasher_add_text(hasher *h, const char *text); /* and its end, so that two are not one */
void hasher_add_u64(hasher *h, uint64_t v);        /* 8 bytes little-endian */
hash128 hasher_value(const hasher *h);

#endif
