/* SPDX-License-Identifier: Apache-2.0 */
/* hash.h: the hash XXH3-128, used for checksums of payloads, digests of streams and identities of
 * data. It finds accidents, not attacks: it is not cryptographic. hash.c is the only file that
 * includes xxhash. */
#ifndef TESSERA_COMMON_BASE_HASH_H
#define TESSERA_COMMON_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* A hash in xxhash's canonical (big-endian) order, so that it has the same bytes and the same text
 * on every machine. */
typedef struct hash128 {
    uint8_t bytes[16];
} hash128;

typedef struct hasher hasher; /* the state of a hash over data that comes in pieces */

enum { HASH_TEXT = 33 }; /* bytes of a hash as text: 32 hex digits and a NUL */

/* The hash of `size` bytes. */
hash128 hash_bytes(const void *data, size_t size);
/* The hash of the 16 bytes of `before` followed by the 16 of `next`. A digest of a stream is made
 * by chaining the hashes of its rows in this way. */
hash128 hash_chain(hash128 before, hash128 next);
bool hash_equal(hash128 one, hash128 other);
/* Writes the hash as 32 lower-case hex digits. */
void hash_print(hash128 hash, char out[HASH_TEXT]);
/* Reads 32 hex digits of either case; false, and *out untouched, for any other text. */
bool hash_parse(const char *text, hash128 *out);
/* The hash of a file's bytes. ST_NO_INPUT if it does not exist, ST_IO if it cannot be read. */
WARN_UNUSED status hash_file(const char *path, hash128 *out);

/* A new hasher has seen no bytes; hasher_reset takes it back to that. hasher_free sets the caller's
 * pointer to NULL and accepts NULL. */
WARN_UNUSED status hasher_new(hasher **out);
void hasher_free(hasher **state);
void hasher_reset(hasher *state);
void hasher_add(hasher *state, const void *data, size_t size);
/* Adds a text with its NUL, so that "ab", "c" and "a", "bc" give different hashes. */
void hasher_add_text(hasher *state, const char *text);
/* Adds 8 bytes, least significant first. */
void hasher_add_u64(hasher *state, uint64_t value);
/* The hash of all bytes so far; more can be added afterwards. */
hash128 hasher_value(const hasher *state);

#endif
