/* SPDX-License-Identifier: Apache-2.0 */
/* hash.c: hashing by xxhash, of memory, of pieces and of files. */
#include "common/base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> /* xxhash.h that uses the widest vectors of this CPU; same hashes */
#else
#include <xxhash.h>
#endif

#include "common/base/file.h"
#include "common/base/span.h"

struct hasher {
    XXH3_state_t *state;
};

enum {
    READ_BYTES = 1 << 18
}; /* read at once by hash_file: a few of the kernel's read-ahead windows */

static hash128 canonical(XXH128_hash_t hash)
{
    XXH128_canonical_t canonical_form;
    hash128 out;
    XXH128_canonicalFromHash(&canonical_form, hash);
    memcpy(out.bytes, canonical_form.digest, sizeof out.bytes);
    return out;
}

hash128 hash_bytes(const void *data, size_t size)
{
    return canonical(XXH3_128bits(data, size));
}

hash128 hash_chain(hash128 before, hash128 next)
{
    uint8_t both[32];
    memcpy(both, before.bytes, 16);
    memcpy(both + 16, next.bytes, 16);
    return hash_bytes(both, sizeof both);
}

bool hash_equal(hash128 one, hash128 other)
{
    return memcmp(one.bytes, other.bytes, sizeof one.bytes) == 0;
}

void hash_print(hash128 hash, char out[HASH_TEXT])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        out[2 * i] = digits[hash.bytes[i] >> 4];
        out[2 * i + 1] = digits[hash.bytes[i] & 15];
    }
    out[32] = 0;
}

static int hex_value(char letter)
{
    if (letter >= '0' && letter <= '9')
        return letter - '0';
    if (letter >= 'a' && letter <= 'f')
        return letter - 'a' + 10;
    if (letter >= 'A' && letter <= 'F')
        return letter - 'A' + 10;
    return -1;
}

bool hash_parse(const char *text, hash128 *out)
{
    hash128 digest;
    if (strnlen(text, HASH_TEXT) != HASH_TEXT - 1)
        return false;
    for (int i = 0; i < 16; i++) {
        int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        digest.bytes[i] = (uint8_t)(high << 4 | low);
    }
    *out = digest;
    return true;
}

status hash_file(const char *path, hash128 *out)
{
    status st = ST_OK;
    hasher *hash = NULL;
    uint8_t *buffer = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(errno == ENOENT ? ST_NO_INPUT : ST_IO, path, "cannot open: %s",
                       strerror(errno));
    TRY_OR(done, hasher_new(&hash));
    buffer = (uint8_t *)malloc(READ_BYTES);
    if (!buffer) {
        st = FAIL(ST_NO_MEMORY, "no memory for a buffer of %d bytes", READ_BYTES);
        goto done;
    }
    for (;;) {
        const ssize_t got = file_read_at(fd, buffer, READ_BYTES, -1);
        if (got < 0) {
            st = FAIL_IN(ST_IO, path, "read failed: %s", strerror(errno));
            goto done;
        }
        if (got == 0)
            break;
        hasher_add(hash, buffer, (size_t)got);
    }
    *out = hasher_value(hash);
done:
    free(buffer);
    hasher_free(&hash);
    close(fd);
    return st;
}

status hasher_new(hasher **out)
{
    hasher *hash = (hasher *)malloc(sizeof *hash);
    if (!hash)
        return FAIL(ST_NO_MEMORY, "no memory for a hasher");
    hash->state = XXH3_createState();
    if (!hash->state) {
        free(hash);
        return FAIL(ST_NO_MEMORY, "no memory for a hasher");
    }
    hasher_reset(hash);
    *out = hash;
    return ST_OK;
}

void hasher_free(hasher **state)
{
    if (!state || !*state)
        return;
    XXH3_freeState((*state)->state);
    free(*state);
    *state = NULL;
}

void hasher_reset(hasher *state)
{
    XXH3_128bits_reset(state->state);
}

void hasher_add(hasher *state, const void *data, size_t size)
{
    if (size)
        XXH3_128bits_update(state->state, data, size);
}

void hasher_add_text(hasher *state, const char *text)
{
    hasher_add(state, text, strlen(text) + 1);
}

void hasher_add_u64(hasher *state, uint64_t value)
{
    uint8_t bytes[8];
    store_u64(bytes, value);
    hasher_add(state, bytes, sizeof bytes);
}

hash128 hasher_value(const hasher *state)
{
    return canonical(XXH3_128bits_digest(state->state));
}
