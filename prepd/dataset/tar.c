/* SPDX-License-Identifier: Apache-2.0 */
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

#include "common/base/file.h"

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

static status read_exactly(const reading *reader, int64_t offset, void *to, size_t bytes)
{
    const int64_t got = file_read_all(reader->fd, to, bytes, offset);
    return got == (int64_t)bytes
               ? ST_OK
               : FAIL_AT(got < 0 ? ST_IO : ST_BAD_INPUT, reader->path, -1, offset, "%s",
                         got < 0 ? strerror(errno) : "the tar file stops early");
}

/* Reads a number: octal digits, or for large numbers GNU's base-256. -1 if it is neither. */
static int64_t parse_field(const uint8_t *field, int count)
{
    int64_t value = 0;
    int k = 0;
    if (field[0] == 0x80) { /* base-256: a positive number, big-endian */
        for (k = 1; k < count; k++) {
            if (value >> 55)
                return -1;
            value = value << 8 | field[k];
        }
        return value;
    }
    while (k < count && field[k] == ' ')
        k++;
    for (; k < count && field[k] >= '0' && field[k] <= '7'; k++) {
        if (value >> 59)
            return -1;
        value = value << 3 | (field[k] - '0');
    }
    return k == count || field[k] == 0 || field[k] == ' ' ? value : -1;
}

static bool sum_agrees(const uint8_t *head)
{
    int64_t sum = 0;
    for (int k = 0; k < BLOCK; k++)
        sum += k >= AT_SUM && k < AT_SUM + SUM_BYTES ? ' ' : head[k];
    return sum == parse_field(head + AT_SUM, SUM_BYTES);
}

static void own_name(const uint8_t *head, char out[TAR_NAME_MAX])
{
    const bool ustar = memcmp(head + AT_MAGIC, "ustar", 6) == 0;
    if (ustar && head[AT_PREFIX])
        snprintf(out, TAR_NAME_MAX, "%.*s/%.*s", PREFIX_BYTES, (const char *)head + AT_PREFIX,
                 NAME_BYTES, (const char *)head + AT_NAME);
    else
        snprintf(out, TAR_NAME_MAX, "%.*s", NAME_BYTES, (const char *)head + AT_NAME);
}

static status keep_name(reading *reader, const char *name, size_t value_bytes)
{
    if (value_bytes >= sizeof reader->name || memchr(name, 0, value_bytes))
        return FAIL_AT(ST_BAD_INPUT, reader->path, -1, reader->at,
                       "the name of a member is damaged or too long (%zu bytes)", value_bytes);
    memcpy(reader->name, name, value_bytes);
    reader->name[value_bytes] = 0;
    return ST_OK;
}

/* Reads the records of a PAX header, "LENGTH KEY=VALUE\n" each. Only path and size matter here. */
static status read_pax(reading *reader, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        char *end;
        if (text[at] < '1' || text[at] > '9') /* strtoll would skip spaces and newlines */
            return FAIL_AT(ST_BAD_INPUT, reader->path, -1, reader->at, "a PAX header is damaged");
        const long long length = strtoll(text + at, &end, 10);
        if (length < 5 || (size_t)length > bytes - at)
            return FAIL_AT(ST_BAD_INPUT, reader->path, -1, reader->at, "a PAX header is damaged");
        const char *key = end + 1, *stop = text + at + length;
        if (key >= stop || *end != ' ' || stop[-1] != '\n')
            return FAIL_AT(ST_BAD_INPUT, reader->path, -1, reader->at, "a PAX header is damaged");
        const char *value = (const char *)memchr(key, '=', (size_t)(stop - key));
        if (!value)
            return FAIL_AT(ST_BAD_INPUT, reader->path, -1, reader->at, "a PAX header is damaged");
        const size_t value_bytes = (size_t)(stop - 1 - (value + 1));
        if (value - key == 4 && memcmp(key, "path", 4) == 0)
            TRY(keep_name(reader, value + 1, value_bytes));
        if (value - key == 4 && memcmp(key, "size", 4) == 0) {
            reader->size = strtoll(value + 1, &end, 10);
            if (end != stop - 1 || reader->size < 0)
                return FAIL_AT(ST_BAD_INPUT, reader->path, -1, reader->at,
                               "the size in a PAX header is not a number");
        }
        at += (size_t)length;
    }
    return ST_OK;
}

/* Reads an extended header, which describes the member after it: GNU's long name ('L') or PAX
 * ('x'). */
static status read_extended(reading *reader, int type, int64_t offset, int64_t bytes)
{
    status st;
    if (bytes > MAX_EXTENDED)
        return FAIL_AT(ST_BAD_INPUT, reader->path, -1, reader->at,
                       "an extended header has %lld bytes, which is too many", (long long)bytes);
    char *text = (char *)malloc((size_t)bytes + 1);
    if (!text)
        return FAIL(ST_NO_MEMORY, "no memory for a tar header");
    TRY_OR(done, read_exactly(reader, offset, text, (size_t)bytes));
    text[bytes] = 0;
    st = type == 'x' ? read_pax(reader, text, (size_t)bytes)
                     : keep_name(reader, text, strnlen(text, (size_t)bytes));
done:
    free(text);
    return st;
}

static bool is_zero(const uint8_t *head)
{
    for (int k = 0; k < BLOCK; k++)
        if (head[k])
            return false;
    return true;
}

static status read_member(reading *reader, const uint8_t *head, tar_each each, void *user)
{
    char name[TAR_NAME_MAX];
    const int type = head[AT_TYPE];
    int64_t bytes = parse_field(head + AT_SIZE, SIZE_BYTES);
    const int64_t offset = reader->at + BLOCK;
    const bool extended = type == 'x' || type == 'L';
    if (!extended && reader->size >= 0)
        bytes = reader->size;
    const bool has_data = type == 0 || type == '0' || type == '7' || extended || type == 'g' ||
                          type == 'K' || type == 'S' || type == 'D';
    if (!has_data)
        bytes = 0;
    if (bytes < 0 || bytes > reader->file_bytes - offset)
        return FAIL_AT(ST_BAD_INPUT, reader->path, -1, reader->at,
                       "a member has %lld bytes and the file %lld: it is damaged or stops early",
                       (long long)bytes, (long long)reader->file_bytes);
    if (extended) {
        TRY(read_extended(reader, type, offset, bytes));
    } else {
        own_name(head, name);
        const tar_member member = {reader->name[0] ? reader->name : name, offset, bytes};
        if (type == 0 || type == '0' || type == '7')
            TRY(each(user, &member, reader->fd));
        if (type != 'g' && type != 'K') {
            reader->name[0] = 0;
            reader->size = -1;
        }
    }
    reader->at = offset + (bytes + BLOCK - 1) / BLOCK * BLOCK;
    return ST_OK;
}

static status read_members(reading *reader, tar_each each, void *user)
{
    uint8_t head[BLOCK];
    int zeros = 0; /* two blocks of zeros end a tar file, but some writers leave them out */
    while (zeros < 2 && reader->at < reader->file_bytes) {
        TRY(read_exactly(reader, reader->at, head, sizeof head));
        if (reader->at == 0 &&
            ((head[0] == 0x1f && head[1] == 0x8b) || memcmp(head, "\x28\xb5\x2f\xfd", 4) == 0))
            return FAIL_IN(
                ST_BAD_INPUT, reader->path,
                "the tar file is compressed: unpack it once (gzip -d, zstd -d); its images "
                "are compressed already, and only a plain tar can be read anywhere");
        if (is_zero(head)) {
            zeros++;
            reader->at += BLOCK;
            continue;
        }
        zeros = 0;
        if (!sum_agrees(head))
            return FAIL_AT(ST_BAD_INPUT, reader->path, -1, reader->at,
                           "this is not a tar header: its checksum is wrong");
        TRY(read_member(reader, head, each, user));
    }
    return ST_OK;
}

status tar_read(const char *path, tar_each each, void *user)
{
    struct stat info;
    status st;
    reading reader = {.path = path, .size = -1};
    reader.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (reader.fd < 0)
        return FAIL_IN(errno == ENOENT ? ST_NO_INPUT : ST_IO, path, "cannot open: %s",
                       strerror(errno));
    if (fstat(reader.fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        st = FAIL_IN(ST_BAD_INPUT, path, "it is not a regular file");
    } else {
        reader.file_bytes = info.st_size;
        st = read_members(&reader, each, user);
    }
    close(reader.fd);
    return st;
}
