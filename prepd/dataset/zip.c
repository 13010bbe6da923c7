/* SPDX-License-Identifier: Apache-2.0 */
/* zip.c: reads the directory at the end of a zip file, and members through unpack_deflate. */
#include "prepd/dataset/zip.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/span.h"
#include "prepd/dataset/unpack.h"

/* The records of PKWARE's APPNOTE 6.3, by signature and fixed size. */
enum {
    END_BYTES = 22,      /* "PK\5\6": the end of the directory; a comment of up to 64 KiB follows */
    END64_AT_BYTES = 20, /* "PK\6\7": where the zip64 end record is */
    END64_BYTES = 56,    /* "PK\6\6": the zip64 end record */
    ENTRY_BYTES = 46,    /* "PK\1\2": a directory entry; name, extra field and comment follow */
    LOCAL_BYTES = 30, /* "PK\3\4": the local header before the bytes; name and extra field follow */
    COMMENT_MAX = 65535,
    EXTRA_ZIP64 = 1,
    STORED = 0,
    DEFLATED = 8,
    ENCRYPTED = 1, /* a bit of the flags */
    IN_BYTES = 256 * 1024,
};
static const uint32_t ABSENT32 = UINT32_MAX; /* stands for a number that is in the zip64 field */
static const int64_t DIRECTORY_MAX = INT64_C(1) << 30;

static status read_exactly(int fd, const char *path, int64_t offset, void *to, size_t bytes)
{
    const int64_t got = file_read_all(fd, to, bytes, offset);
    return got == (int64_t)bytes ? ST_OK
                                 : FAIL_AT(got < 0 ? ST_IO : ST_BAD_INPUT, path, -1, offset, "%s",
                                           got < 0 ? strerror(errno) : "the zip file stops early");
}

static bool has_mark(const uint8_t *at, uint8_t third, uint8_t fourth)
{
    return at[0] == 'P' && at[1] == 'K' && at[2] == third && at[3] == fourth;
}

typedef struct directory {
    int64_t offset, bytes, entries;
} directory;

/* Finds the directory from the end record, or from the zip64 end record before it. */
static status find_directory(int fd, const char *path, int64_t file_bytes, directory *out)
{
    static uint8_t tail[END64_AT_BYTES + END_BYTES + COMMENT_MAX];
    const int64_t count = file_bytes < (int64_t)sizeof tail ? file_bytes : (int64_t)sizeof tail;
    TRY(read_exactly(fd, path, file_bytes - count, tail, (size_t)count));
    int64_t at = count - END_BYTES;
    while (at >= 0 &&
           !(has_mark(tail + at, 5, 6) && load_u16(tail + at + 20) == count - at - END_BYTES))
        at--;
    if (at < 0)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "it is not a zip file, or stops early: it has no end record");
    const uint8_t *end = tail + at;
    *out = (directory){load_u32(end + 16), load_u32(end + 12), load_u16(end + 10)};
    if (load_u16(end + 4) != 0)
        return FAIL_IN(ST_BAD_INPUT, path, "it is a part of a split archive: join the parts first");
    if (at < END64_AT_BYTES || !has_mark(end - END64_AT_BYTES, 6, 7))
        return ST_OK;
    uint8_t wide[END64_BYTES];
    const int64_t wide_at = (int64_t)load_u64(end - END64_AT_BYTES + 8);
    if (wide_at < 0 || wide_at > file_bytes - END64_BYTES)
        return FAIL_IN(ST_BAD_INPUT, path, "its zip64 end record lies outside the file");
    TRY(read_exactly(fd, path, wide_at, wide, sizeof wide));
    if (!has_mark(wide, 6, 6))
        return FAIL_AT(ST_BAD_INPUT, path, -1, wide_at, "there is no zip64 end record here");
    *out = (directory){(int64_t)load_u64(wide + 48), (int64_t)load_u64(wide + 40),
                       (int64_t)load_u64(wide + 32)};
    return ST_OK;
}

/* Reads the numbers that did not fit into 32 bits. They stand in this order, and each only if its
 * own field says so (ABSENT32). */
static status read_zip64(const char *path, const uint8_t *extra, size_t n_extra, zip_member *member)
{
    int64_t *const fields[] = {&member->bytes, &member->packed, &member->header};
    for (size_t at = 0; at + 4 <= n_extra;) {
        const size_t size = load_u16(extra + at + 2);
        size_t from = at + 4;
        if (size > n_extra - from)
            break;
        if (load_u16(extra + at) == EXTRA_ZIP64) {
            const size_t end = from + size;
            for (int k = 0; k < 3; k++) {
                if (*fields[k] != ABSENT32)
                    continue;
                if (from + 8 > end)
                    return FAIL_IN(ST_BAD_INPUT, path, "a zip64 field is cut short");
                *fields[k] = (int64_t)load_u64(extra + from);
                from += 8;
            }
            return ST_OK;
        }
        at = from + size;
    }
    return ST_OK;
}

/* Reads one entry of the directory `at`, of which `left` bytes are there;
 * *out_bytes is its length. */
static status read_entry(const char *path, const uint8_t *at, int64_t left, int64_t file_bytes,
                         zip_each each, void *user, int64_t *out_bytes)
{
    char name[ZIP_NAME_MAX];
    if (left < ENTRY_BYTES || !has_mark(at, 1, 2))
        return FAIL_IN(ST_BAD_INPUT, path, "its directory is damaged");
    const size_t n_name = load_u16(at + 28), n_extra = load_u16(at + 30);
    *out_bytes = ENTRY_BYTES + (int64_t)n_name + (int64_t)n_extra + load_u16(at + 32);
    if (*out_bytes > left || n_name == 0 || n_name >= sizeof name ||
        memchr(at + ENTRY_BYTES, 0, n_name))
        return FAIL_IN(ST_BAD_INPUT, path, "its directory is damaged");
    memcpy(name, at + ENTRY_BYTES, n_name);
    name[n_name] = 0;
    zip_member member = {.name = name,
                         .header = load_u32(at + 42),
                         .packed = load_u32(at + 20),
                         .bytes = load_u32(at + 24),
                         .stored = load_u16(at + 10) == STORED};
    TRY(read_zip64(path, at + ENTRY_BYTES + n_name, n_extra, &member));
    if (name[n_name - 1] == '/')
        return ST_OK;
    if (load_u16(at + 8) & ENCRYPTED)
        return FAIL_IN(ST_BAD_INPUT, path, "member %.200s is encrypted", name);
    if (member.header < 0 || member.packed < 0 || member.bytes < 0 ||
        member.header > file_bytes - LOCAL_BYTES ||
        member.packed > file_bytes - LOCAL_BYTES - member.header ||
        (member.stored && member.packed != member.bytes))
        return FAIL_IN(ST_BAD_INPUT, path, "member %.200s lies outside the file", name);
    if (load_u16(at + 10) != STORED && load_u16(at + 10) != DEFLATED)
        member.packed = -1;
    return each(user, &member);
}

static status read_directory(int fd, const char *path, zip_each each, void *user)
{
    struct stat info;
    directory listing;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return FAIL_IN(ST_BAD_INPUT, path, "it is not a regular file");
    if (info.st_size < END_BYTES)
        return FAIL_IN(ST_BAD_INPUT, path, "it is not a zip file: it has only %lld bytes",
                       (long long)info.st_size);
    TRY(find_directory(fd, path, info.st_size, &listing));
    if (listing.offset < 0 || listing.bytes < 0 || listing.bytes > DIRECTORY_MAX ||
        listing.bytes > info.st_size || listing.offset > info.st_size - listing.bytes ||
        listing.entries < 0)
        return FAIL_IN(ST_BAD_INPUT, path, "its directory lies outside the file");
    uint8_t *bytes = (uint8_t *)malloc((size_t)listing.bytes + 1);
    if (!bytes)
        return FAIL(ST_NO_MEMORY, "no memory for a directory of %lld bytes",
                    (long long)listing.bytes);
    status st = read_exactly(fd, path, listing.offset, bytes, (size_t)listing.bytes);
    int64_t count = 0;
    for (int64_t at = 0, some = 0; st == ST_OK && at < listing.bytes; at += some, count++)
        st = read_entry(path, bytes + at, listing.bytes - at, info.st_size, each, user, &some);
    free(bytes);
    /* Without zip64 the count has only 16 bits, and some programs write more members than that. */
    if (st == ST_OK && (count - listing.entries) % 65536 != 0)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "its directory is damaged: it has %lld members and should have %lld",
                       (long long)count, (long long)listing.entries);
    return st;
}

status zip_read(const char *path, zip_each each, void *user)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(errno == ENOENT ? ST_NO_INPUT : ST_IO, path, "cannot open: %s",
                       strerror(errno));
    status st = read_directory(fd, path, each, user);
    close(fd);
    return st;
}

status zip_place(int fd, const char *path, const zip_member *member, int64_t *out_offset)
{
    uint8_t head[LOCAL_BYTES];
    struct stat info;
    TRY(read_exactly(fd, path, member->header, head, sizeof head));
    if (!has_mark(head, 3, 4))
        return FAIL_AT(ST_BAD_INPUT, path, -1, member->header,
                       "there is no member here: the zip file is damaged");
    const int64_t offset = member->header + LOCAL_BYTES + load_u16(head + 26) + load_u16(head + 28);
    if (fstat(fd, &info) != 0 || offset > info.st_size - member->packed)
        return FAIL_AT(ST_BAD_INPUT, path, -1, member->header, "a member lies outside the file");
    *out_offset = offset;
    return ST_OK;
}

struct zip_stream {
    const char *path; /* borrowed */
    int fd;
    int64_t at, left; /* offset of the next packed byte, and how many are left */
    bool stored, ended;
    unpack_decoder *decoder;
    uint8_t *in;
    size_t in_at, in_n;
};

status zip_open(const char *path, const zip_member *member, zip_stream **out)
{
    status st;
    zip_stream *stream = (zip_stream *)calloc(1, sizeof *stream);
    if (!stream)
        return FAIL(ST_NO_MEMORY, "no memory to read a zip file");
    stream->path = path;
    stream->left = member->packed;
    stream->stored = member->stored;
    stream->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (stream->fd < 0) {
        st = FAIL_IN(ST_NO_INPUT, path, "cannot open: %s", strerror(errno));
        goto failed;
    }
    if (member->packed < 0) {
        st = FAIL_IN(ST_BAD_INPUT, path, "a member is neither stored nor deflated");
        goto failed;
    }
    TRY_OR(failed, zip_place(stream->fd, path, member, &stream->at));
    if (!stream->stored) {
        stream->in = (uint8_t *)malloc(IN_BYTES);
        if (!stream->in) {
            st = FAIL(ST_NO_MEMORY, "no memory to read a zip file");
            goto failed;
        }
        TRY_OR(failed, unpack_deflate.begin(&stream->decoder));
    }
    *out = stream;
    return ST_OK;
failed:
    zip_close(&stream);
    return st;
}

static status inflate_some(zip_stream *stream, uint8_t *to, size_t size, size_t *out_n)
{
    bool ended = false;
    *out_n = 0;
    while (*out_n == 0 && !stream->ended) {
        if (stream->in_at == stream->in_n && stream->left > 0) {
            stream->in_n = stream->left < IN_BYTES ? (size_t)stream->left : IN_BYTES;
            stream->in_at = 0;
            TRY(read_exactly(stream->fd, stream->path, stream->at, stream->in, stream->in_n));
            stream->at += (int64_t)stream->in_n;
            stream->left -= (int64_t)stream->in_n;
        }
        size_t taken = stream->in_n - stream->in_at;
        const bool starved = taken == 0;
        *out_n = size;
        unpack_restart ignored;
        status st = unpack_deflate.step(stream->decoder, stream->in + stream->in_at, &taken, to,
                                        out_n, &ended, &ignored);
        if (st != ST_OK)
            return FAIL_AT(st, stream->path, -1, stream->at, "a deflated member is damaged");
        stream->in_at += taken;
        stream->ended = unpack_deflate.may_end(stream->decoder);
        if (starved && *out_n == 0 && !stream->ended)
            return FAIL_AT(ST_BAD_INPUT, stream->path, -1, stream->at,
                           "a deflated member stops early");
    }
    return ST_OK;
}

status zip_next(void *stream, void *to, size_t size, size_t *out_n)
{
    zip_stream *zip = (zip_stream *)stream;
    if (!zip->stored)
        return inflate_some(zip, (uint8_t *)to, size, out_n);
    *out_n = zip->left < (int64_t)size ? (size_t)zip->left : size;
    TRY(read_exactly(zip->fd, zip->path, zip->at, to, *out_n));
    zip->at += (int64_t)*out_n;
    zip->left -= (int64_t)*out_n;
    return ST_OK;
}

void zip_close(zip_stream **stream)
{
    if (!*stream)
        return;
    if ((*stream)->decoder)
        unpack_deflate.end(&(*stream)->decoder);
    if ((*stream)->fd >= 0)
        close((*stream)->fd);
    free((*stream)->in);
    free(*stream);
    *stream = NULL;
}
