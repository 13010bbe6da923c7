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

#include "common/base/span.h"

struct hasher {
    XXH3_state_t *state;
};

enum {
    READ_BYTES = 1 << 18
}; /* read at once by hash_file: a few of the kernel's read-ahead windows */

static hash128 canonical(XXH128_hash_t h)
{
    XXH128_canonical_t c;
    hash128 out;
    XXH128_canonicalFromHash(&c, h);
    memcpy(out.bytes, c.digest, sizeof out.bytes);
    return out;
}

hash128 hash_bytes(const void *data, size_t size)
{
    return canonical(XXH3_128bits(data, size));
}

hash128 hash_chain(hash128 a, hash128 b)
{
    uint8_t both[32];
    memcpy(both, a.bytes, 16);
    memcpy(both + 16, b.bytes, 16);
    return hash_bytes(both, sizeof both);
}

bool hash_equal(hash128 a, hash128 b)
{
    return memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0;
}

void hash_print(hash128 h, char out[HASH_TEXT])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        out[2 * i] = digits[h.bytes[i] >> 4];
        out[2 * i + 1] = digits[h.bytes[i] & 15];
    }
    out[32] = 0;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool hash_parse(const char *text, hash128 *out)
{
    hash128 h;
    if (strnlen(text, HASH_TEXT) != HASH_TEXT - 1)
        return false;
    for (int i = 0; i < 16; i++) {
        int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        h.bytes[i] = (uint8_t)(high << 4 | low);
    }
    *out = h;
    return true;
}

status hash_file(const char *path, hash128 *out)
{
    status st = ST_OK;
    hasher *h = NULL;
    uint8_t *buffer = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(errno == ENOENT ? ST_NO_INPUT : ST_IO, path, "cannot open: %s",
                       strerror(errno));
    TRY_OR(done, hasher_new(&h));
    buffer = (uint8_t *)malloc(READ_BYTES);
    if (!buffer) {
        st = FAIL(ST_NO_MEMORY, "no memory for a buffer of %d bytes", READ_BYTES);
        goto done;
    }
    for (;;) {
        ssize_t n = read(fd, buffer, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            st = FAIL_IN(ST_IO, path, "read failed: %s", strerror(errno));
            goto done;
        }
        if (n == 0)
            break;
        hasher_add(h, buffer, (size_t)n);
    }
    *out = hasher_value(h);
done:
    free(buffer);
    hasher_free(&h);
    close(fd);
    return st;
}

status hasher_new(hasher **out)
{
    hasher *h = (hasher *)malloc(sizeof *h);
    if (!h)
        return FAIL(ST_NO_MEMORY, "no memory for a hasher");
    h->state = XXH3_createState();
    if (!h->state) {
        free(h);
        return FAIL(ST_NO_MEMORY, "no memory for a hasher");
    }
    hasher_reset(h);
    *out = h;
    return ST_OK;
}

void hasher_free(hasher **h)
{
    if (!h || !*h)
        return;
    XXH3_freeState((*h)->state);
    free(*h);
    *h = NULL;
}

void hasher_reset(hasher *h)
{
    XXH3_128bits_reset(h->state);
}

void hasher_add(hasher *h, const void *data, size_t size)
{
    if (size)
        XXH3_128bits_update(h->state, data, size);
}

void hasher_add_text(hasher *h, const char *text)
{
    hasher_add(h, text, strlen(text) + 1);
}

void hasher_add_u64(hasher *h, uint64_t v)
{
    uint8_t bytes[8];
    store_u64(bytes, v);
    hasher_add(h, bytes, sizeof bytes);
}

hash128 hasher_value(const hasher *h)
{
    return canonical(XXH3_128bits_digest(h->state));
}
