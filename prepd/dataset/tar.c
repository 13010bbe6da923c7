/* tar.c: walks over the headers of a tar file, 512 bytes each, and skips the bytes of the members.
 * Headers that describe the member after them (a long name, PAX) are read and applied to it. */
#include "prepd/dataset/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BLOCK = 512,
    AT_NAME = 0, /* offsets and sizes of the header's fields (POSIX.1-1988, ustar) */
    NAME_BYTES = 100,
    AT_SIZE = 124,
    SIZE_BYTES = 12,
    AT_SUM = 148,
    SUM_BYTES = 8,
    AT_TYPE = 156,
    AT_MAGIC = 257,
    AT_PREFIX = 345,
    PREFIX_BYTES = 155,
    MAX_EXTENDED = 1 << 20, /* the most bytes that an extended header may have */
};

typedef struct reading {
    const char *path;
    int fd;
    int64_t file_bytes, at;
    char name[TAR_NAME_MAX]; /* of the next member, given by an extended header; "" if none did */
    int64_t size;            /* the same; -1 if none did */
} reading;

static status read_exactly(const reading *r, int64_t offset, void *to, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t some = pread(r->fd, (char *)to + done, n - done, offset + (int64_t)done);
        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            return FAIL_AT(some < 0 ? ST_IO : ST_BAD_INPUT, r->path, -1, offset, "%s",
                           some < 0 ? strerror(errno) : "the tar file stops early");
        done += (size_t)some;
    }
    return ST_OK;
}

/* Reads a number: octal digits, or for large numbers GNU's base-256. -1 if it is neither. */
static int64_t parse_field(const uint8_t *field, int n)
{
    int64_t v = 0;
    int k = 0;
    if (field[0] == 0x80) { /* base-256: a positive number, big-endian */
        for (k = 1; k < n; k++) {
            if (v >> 55)
                return -1;
            v = v << 8 | field[k];
        }
        return v;
    }
    while (k < n && field[k] == ' ')
        k++;
    for (; k < n && field[k] >= '0' && field[k] <= '7'; k++) {
        if (v >> 59)
            return -1;
        v = v << 3 | (field[k] - '0');
    }
    return k == n || field[k] == 0 || field[k] == ' ' ? v : -1;
}

static bool sum_agrees(const uint8_t *h)
{
    int64_t sum = 0;
    for (int k = 0; k < BLOCK; k++)
        sum += k >= AT_SUM && k < AT_SUM + SUM_BYTES ? ' ' : h[k];
    return sum == parse_field(h + AT_SUM, SUM_BYTES);
}

static void own_name(const uint8_t *h, char out[TAR_NAME_MAX])
{
    const bool ustar = memcmp(h + AT_MAGIC, "ustar", 6) == 0;
    if (ustar && h[AT_PREFIX])
        snprintf(out, TAR_NAME_MAX, "%.*s/%.*s", PREFIX_BYTES, (const char *)h + AT_PREFIX,
                 NAME_BYTES, (const char *)h + AT_NAME);
    else
        snprintf(out, TAR_NAME_MAX, "%.*s", NAME_BYTES, (const char *)h + AT_NAME);
}

static status keep_name(reading *r, const char *name, size_t n)
{
    if (n >= sizeof r->name || memchr(name, 0, n))
        return FAIL_AT(ST_BAD_INPUT, r->path, -1, r->at,
                       "the name of a member is damaged or too long (%zu bytes)", n);
    memcpy(r->name, name, n);
    r->name[n] = 0;
    return ST_OK;
}

/* Reads the records of a PAX header, "LENGTH KEY=VALUE\n" each. Only path and size matter here. */
static status read_pax(reading *r, const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        char *end;
        if (text[at] < '1' || text[at] > '9') /* strtoll would skip spaces and newlines */
            return FAIL_AT(ST_BAD_INPUT, r->path, -1, r->at, "a PAX header is damaged");
        const long long length = strtoll(text + at, &end, 10);
        if (length < 5 || (size_t)length > n - at)
            return FAIL_AT(ST_BAD_INPUT, r->path, -1, r->at, "a PAX header is damaged");
        const char *key = end + 1, *stop = text + at + length;
        if (key >= stop || *end != ' ' || stop[-1] != '\n')
            return FAIL_AT(ST_BAD_INPUT, r->path, -1, r->at, "a PAX header is damaged");
        const char *value = (const char *)memchr(key, '=', (size_t)(stop - key));
        if (!value)
            return FAIL_AT(ST_BAD_INPUT, r->path, -1, r->at, "a PAX header is damaged");
        const size_t value_bytes = (size_t)(stop - 1 - (value + 1));
        if (value - key == 4 && memcmp(key, "path", 4) == 0)
            TRY(keep_name(r, value + 1, value_bytes));
        if (value - key == 4 && memcmp(key, "size", 4) == 0) {
            r->size = strtoll(value + 1, &end, 10);
            if (end != stop - 1 || r->size < 0)
                return FAIL_AT(ST_BAD_INPUT, r->path, -1, r->at,
                               "the size in a PAX header is not a number");
        }
        at += (size_t)length;
    }
    return ST_OK;
}

/* Reads an extended header, which describes the member after it: GNU's long name ('L') or PAX
 * ('x'). */
static status read_extended(reading *r, int type, int64_t offset, int64_t bytes)
{
    status st;
    if (bytes > MAX_EXTENDED)
        return FAIL_AT(ST_BAD_INPUT, r->path, -1, r->at,
                       "an extended header has %lld bytes, which is too many", (long long)bytes);
    char *text = (char *)malloc((size_t)bytes + 1);
    if (!text)
        return FAIL(ST_NO_MEMORY, "no memory for a tar header");
    TRY_OR(done, read_exactly(r, offset, text, (size_t)bytes));
    text[bytes] = 0;
    st = type == 'x' ? read_pax(r, text, (size_t)bytes)
                     : keep_name(r, text, strnlen(text, (size_t)bytes));
done:
    free(text);
    return st;
}

static bool is_zero(const uint8_t *h)
{
    for (int k = 0; k < BLOCK; k++)
        if (h[k])
            return false;
    return true;
}

static status read_member(reading *r, const uint8_t *h, tar_each each, void *user)
{
    char name[TAR_NAME_MAX];
    const int type = h[AT_TYPE];
    int64_t bytes = parse_field(h + AT_SIZE, SIZE_BYTES);
    const int64_t offset = r->at + BLOCK;
    const bool extended = type == 'x' || type == 'L';
    if (!extended && r->size >= 0)
        bytes = r->size;
    const bool has_data = type == 0 || type == '0' || type == '7' || extended || type == 'g' ||
                          type == 'K' || type == 'S' || type == 'D';
    if (!has_data)
        bytes = 0;
    if (bytes < 0 || bytes > r->file_bytes - offset)
        return FAIL_AT(ST_BAD_INPUT, r->path, -1, r->at,
                       "a member has %lld bytes and the file %lld: it is damaged or stops early",
                       (long long)bytes, (long long)r->file_bytes);
    if (extended) {
        TRY(read_extended(r, type, offset, bytes));
    } else {
        own_name(h, name);
        const tar_member m = {r->name[0] ? r->name : name, offset, bytes};
        if (type == 0 || type == '0' || type == '7')
            TRY(each(user, &m, r->fd));
        if (type != 'g' && type != 'K') {
            r->name[0] = 0;
            r->size = -1;
        }
    }
    r->at = offset + (bytes + BLOCK - 1) / BLOCK * BLOCK;
    return ST_OK;
}

static status read_members(reading *r, tar_each each, void *user)
{
    uint8_t h[BLOCK];
    int zeros = 0; /* two blocks of zeros end a tar file, but some writers leave them out */
    while (zeros < 2 && r->at < r->file_bytes) {
        TRY(read_exactly(r, r->at, h, sizeof h));
        if (r->at == 0 && ((h[0] == 0x1f && h[1] == 0x8b) || memcmp(h, "\x28\xb5\x2f\xfd", 4) == 0))
            return FAIL_IN(
                ST_BAD_INPUT, r->path,
                "the tar file is compressed: unpack it once (gzip -d, zstd -d); its images "
                "are compressed already, and only a plain tar can be read anywhere");
        if (is_zero(h)) {
            zeros++;
            r->at += BLOCK;
            continue;
        }
        zeros = 0;
        if (!sum_agrees(h))
            return FAIL_AT(ST_BAD_INPUT, r->path, -1, r->at,
                           "this is not a tar header: its checksum is wrong");
        TRY(read_member(r, h, each, user));
    }
    return ST_OK;
}

status tar_read(const char *path, tar_each each, void *user)
{
    struct stat info;
    status st;
    reading r = {.path = path, .size = -1};
    r.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (r.fd < 0)
        return FAIL_IN(errno == ENOENT ? ST_NO_INPUT : ST_IO, path, "cannot open: %s",
                       strerror(errno));
    if (fstat(r.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        st = FAIL_IN(ST_BAD_INPUT, path, "it is not a regular file");
    } else {
        r.file_bytes = info.st_size;
        st = read_members(&r, each, user);
    }
    close(r.fd);
    return st;
}
