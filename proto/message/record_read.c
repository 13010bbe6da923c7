/* SPDX-License-Identifier: Apache-2.0 */
/* record_read.c: reads rows from a recording. The file is mapped, and every offset, size and hash
 * in it is checked before it is used. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/message/record.h"

struct record_reader {
    char *path;
    span file;     /* the whole file, mapped */
    char *welcome; /* a copy, ended by a zero */
    uint64_t data; /* offset of the first chunk */
    uint64_t index, n_rows, n_images;
};

static uint64_t align_offset(uint64_t at)
{
    return (at + RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
}

static status map_file(const char *path, span *out)
{
    struct stat info;
    status st = ST_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(ST_NO_INPUT, path, "cannot open the recording: %s", strerror(errno));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        st = FAIL_IN(ST_NO_INPUT, path, "this is not a regular file, so not a recording");
    } else if (info.st_size > 0) {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            st = FAIL_IN(ST_OS, path, "cannot map the recording: %s", strerror(errno));
        else
            *out = span_of(map, (size_t)info.st_size);
    }
    close(fd);
    return st;
}

static status read_head(record_reader *reader)
{
    const uint8_t *at = reader->file.data;
    if (reader->file.size < HEAD_BYTES || load_u32(at + HEAD_AT_MAGIC) != RECORD_MAGIC)
        return FAIL_AT(
            ST_BAD_INPUT, reader->path, -1, 0,
            "this is not a recording: expected a head of %d bytes that begins with \"TSRR\"",
            HEAD_BYTES);
    uint16_t version = load_u16(at + HEAD_AT_VERSION);
    if (version != RECORD_VERSION)
        return FAIL_AT(ST_BAD_INPUT, reader->path, -1, HEAD_AT_VERSION,
                       "the recording has version %d, this program reads version %d: record it "
                       "again",
                       version, RECORD_VERSION);
    uint64_t size = load_u64(at + HEAD_AT_WELCOME);
    if (!span_holds(reader->file, HEAD_BYTES, size))
        return FAIL_AT(ST_BAD_INPUT, reader->path, -1, (int64_t)reader->file.size,
                       "the recording is cut short: the file ends inside the WELCOME of %llu bytes",
                       (unsigned long long)size);
    hash128 hash = hash_bytes(at + HEAD_BYTES, size);
    if (memcmp(hash.bytes, at + HEAD_AT_HASH, sizeof hash.bytes))
        return FAIL_AT(ST_BAD_INPUT, reader->path, -1, HEAD_BYTES,
                       "the WELCOME does not match the hash in the head: the file is damaged");
    reader->welcome = strndup((const char *)at + HEAD_BYTES, size);
    if (!reader->welcome)
        return FAIL(ST_NO_MEMORY, "no memory for a WELCOME of %llu bytes",
                    (unsigned long long)size);
    reader->data = align_offset(HEAD_BYTES + size);
    return ST_OK;
}

/* The failure of a file without a tail. Walks from chunk to chunk to say where the file was cut. */
static status cut_short(const record_reader *reader)
{
    uint64_t at = reader->data, rows = 0, size = 0;
    while (span_holds(reader->file, at, CHUNK_BYTES)) {
        const uint8_t *from = reader->file.data + at;
        uint32_t type = load_u32(from + CHUNK_AT_TYPE);
        size = load_u64(from + CHUNK_AT_SIZE);
        if ((type != CHUNK_IMAGE && type != CHUNK_ROW) ||
            !span_holds(reader->file, at + CHUNK_BYTES, size))
            break;
        rows += type == CHUNK_ROW;
        at = align_offset(at + CHUNK_BYTES + size);
    }
    return FAIL_AT(ST_BAD_INPUT, reader->path, -1, (int64_t)reader->file.size,
                   "the recording is cut short: the file ends here without its index, %llu whole "
                   "rows end at byte %llu; record it again",
                   (unsigned long long)rows, (unsigned long long)at);
}

static status read_tail(record_reader *reader)
{
    if (reader->file.size < reader->data + TAIL_BYTES)
        return cut_short(reader);
    uint64_t end = reader->file.size - TAIL_BYTES;
    const uint8_t *tail = reader->file.data + end;
    if (load_u32(tail + TAIL_AT_MAGIC) != RECORD_TAIL)
        return cut_short(reader);
    reader->index = load_u64(tail + TAIL_AT_INDEX);
    reader->n_rows = load_u64(tail + TAIL_AT_ROWS);
    reader->n_images = load_u32(tail + TAIL_AT_IMAGES);
    if (reader->index < reader->data || reader->index > end ||
        reader->n_rows > end / INDEX_ROW_BYTES ||
        end - reader->index !=
            reader->n_rows * INDEX_ROW_BYTES + reader->n_images * INDEX_IMAGE_BYTES)
        return FAIL_AT(
            ST_BAD_INPUT, reader->path, -1, (int64_t)end,
            "an index of %llu rows and %llu images cannot begin at byte %llu: the file is "
            "damaged",
            (unsigned long long)reader->n_rows, (unsigned long long)reader->n_images,
            (unsigned long long)reader->index);
    hash128 check =
        hash_bytes(reader->file.data + reader->index, end - reader->index + TAIL_AT_CHECK);
    if (memcmp(check.bytes, tail + TAIL_AT_CHECK, TAIL_CHECK_BYTES))
        return FAIL_AT(ST_BAD_INPUT, reader->path, -1, (int64_t)reader->index,
                       "the index does not match the hash in the tail: the file is damaged");
    return ST_OK;
}

status record_open(const char *path, record_reader **out)
{
    status st = ST_OK;
    record_reader *reader = calloc(1, sizeof *reader);
    if (!reader || !(reader->path = strdup(path))) {
        free(reader);
        return FAIL(ST_NO_MEMORY, "no memory for a recording");
    }
    TRY_OR(failed, map_file(path, &reader->file));
    TRY_OR(failed, read_head(reader));
    TRY_OR(failed, read_tail(reader));
    *out = reader;
    return ST_OK;
failed:
    record_close(&reader);
    return st;
}

void record_close(record_reader **reader)
{
    if (!reader || !*reader)
        return;
    if ((*reader)->file.data)
        munmap((void *)(uintptr_t)(*reader)->file.data, (*reader)->file.size);
    free((*reader)->welcome);
    free((*reader)->path);
    free(*reader);
    *reader = NULL;
}

const char *record_welcome(const record_reader *reader)
{
    return reader->welcome;
}

uint64_t record_rows(const record_reader *reader)
{
    return reader->n_rows;
}

/* Finds the payload of the chunk at this offset; false if no whole chunk of this type is there. */
static bool find_chunk(const record_reader *reader, uint64_t at, chunk_type type, span *out)
{
    span data = span_of(reader->file.data, reader->index);
    if (at < reader->data || !span_holds(data, at, CHUNK_BYTES))
        return false;
    const uint8_t *from = data.data + at;
    uint64_t size = load_u64(from + CHUNK_AT_SIZE);
    *out = span_of(from + CHUNK_BYTES, size);
    return load_u32(from + CHUNK_AT_TYPE) == (uint32_t)type &&
           span_holds(data, at + CHUNK_BYTES, size);
}

static status read_chunk(const record_reader *reader, uint64_t at, chunk_type type, span *out)
{
    const char *what = type == CHUNK_ROW ? "row" : "image";
    span payload;
    if (!find_chunk(reader, at, type, &payload))
        return FAIL_AT(ST_BAD_INPUT, reader->path, -1, (int64_t)at,
                       "no %s begins here, though the index says so: the file is damaged", what);
    hash128 hash = hash_bytes(payload.data, payload.size);
    if (memcmp(hash.bytes, payload.data - CHUNK_BYTES + CHUNK_AT_HASH, sizeof hash.bytes))
        return FAIL_AT(ST_BAD_INPUT, reader->path, -1, (int64_t)at,
                       "the %s here does not match its hash: the file is damaged", what);
    *out = payload;
    return ST_OK;
}

static status find_image(const record_reader *reader, const uint8_t *hash, span *out)
{
    const uint8_t *entries = reader->file.data + reader->index + reader->n_rows * INDEX_ROW_BYTES;
    uint64_t low = 0, high = reader->n_images;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        const uint8_t *entry = entries + middle * INDEX_IMAGE_BYTES;
        int order = memcmp(hash, entry, ROW_IMAGE_BYTES);
        if (order == 0)
            return read_chunk(reader, load_u64(entry + ROW_IMAGE_BYTES), CHUNK_IMAGE, out);
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return FAIL_AT(ST_BAD_INPUT, reader->path, -1, (int64_t)(hash - reader->file.data),
                   "an image of this row is not in the index: the file is damaged");
}

static status read_row(const record_reader *reader, uint64_t offset, bool with_images,
                       wire_msg *message)
{
    span row;
    frame head;
    TRY(read_chunk(reader, offset, CHUNK_ROW, &row));
    if (row.size < ROW_AT_BLOCK)
        return FAIL_AT(ST_BAD_INPUT, reader->path, -1, (int64_t)offset,
                       "a row has %zu bytes, expected at least %d: the file is damaged", row.size,
                       ROW_AT_BLOCK);
    TRY(frame_decode(span_of(row.data, FRAME_BYTES), reader->path, &head));
    uint64_t block = load_u64(row.data + ROW_AT_BLOCK_SIZE);
    uint64_t images = (uint64_t)head.n_images * ROW_IMAGE_BYTES;
    if (head.kind != KIND_ROW || !span_holds(row, ROW_AT_BLOCK, block) ||
        row.size - ROW_AT_BLOCK - block < images)
        return FAIL_AT(
            ST_BAD_INPUT, reader->path, -1, (int64_t)offset,
            "a %s of %zu bytes cannot hold a block of %llu and %u images: the file is damaged",
            frame_kind_name(head.kind), row.size, (unsigned long long)block, head.n_images);
    TRY(wire_msg_add(message, row.data, FRAME_BYTES));
    TRY(wire_msg_add(message, row.data + ROW_AT_BLOCK, block));
    const uint64_t tag = ROW_AT_BLOCK + block + images;
    for (uint32_t i = 0; i < (with_images ? head.n_images : 0); i++) {
        span image;
        TRY(find_image(reader, row.data + ROW_AT_BLOCK + block + (uint64_t)i * ROW_IMAGE_BYTES,
                       &image));
        TRY(wire_msg_add(message, image.data, image.size));
    }
    return with_images && row.size > tag ? wire_msg_add(message, row.data + tag, row.size - tag)
                                         : ST_OK;
}

static status check_row_number(const record_reader *reader, uint64_t index)
{
    if (index < reader->n_rows)
        return ST_OK;
    return FAIL_IN(ST_END, reader->path, "there is no row %llu of %llu", (unsigned long long)index,
                   (unsigned long long)reader->n_rows);
}

static status read_at(const record_reader *reader, uint64_t index, bool with_images,
                      wire_msg *message)
{
    TRY(check_row_number(reader, index));
    wire_msg_clear(message);
    uint64_t offset = load_u64(reader->file.data + reader->index + index * INDEX_ROW_BYTES);
    status st = read_row(reader, offset, with_images, message);
    if (st != ST_OK)
        wire_msg_clear(message);
    return st;
}

status record_head(const record_reader *reader, uint64_t index, frame *out)
{
    span row;
    TRY(check_row_number(reader, index));
    const uint64_t at = load_u64(reader->file.data + reader->index + index * INDEX_ROW_BYTES);
    if (!find_chunk(reader, at, CHUNK_ROW, &row) || row.size < ROW_AT_BLOCK)
        return FAIL_IN(ST_BAD_INPUT, reader->path, "the header of row %llu is damaged",
                       (unsigned long long)index);
    return frame_decode(span_of(row.data, FRAME_BYTES), reader->path, out);
}

status record_read(const record_reader *reader, uint64_t index, wire_msg *message)
{
    return read_at(reader, index, true, message);
}

status record_read_block(const record_reader *reader, uint64_t index, wire_msg *message)
{
    return read_at(reader, index, false, message);
}
