/* SPDX-License-Identifier: Apache-2.0 */
/* record_write.c: writes rows to a file, every distinct image part once.
 *
 * A hash table from the parts' hashes to the offsets of their chunks tells which parts are in the
 * file already; at the end it becomes the index of images. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "proto/message/record.h"

enum { FILE_BUFFER = 1 << 20, FIRST_SLOTS = 1024, FIRST_ROWS = 256 };

typedef struct image_entry {
    hash128 hash;
    uint64_t offset; /* of its chunk; 0 for a free slot (offset 0 is the head) */
} image_entry;

struct record_writer {
    char *path, *temporary;
    FILE *file;
    bool named;   /* the file is called `temporary` already: the file system has no unnamed files */
    char *buffer; /* of file */
    uint64_t at;  /* bytes written */
    uint64_t *rows;
    size_t n_rows, row_capacity;
    image_entry *images; /* [n_slots] open addressing; a power of two, at most half full */
    size_t n_images, n_slots;
};

static status write_failed(const record_writer *recording)
{
    return FAIL_IN(ST_IO, recording->temporary, "the recording cannot be written: %s",
                   strerror(errno));
}

static status write_bytes(record_writer *recording, const void *data, size_t size)
{
    if (size > 0 && fwrite(data, 1, size, recording->file) != size)
        return write_failed(recording);
    recording->at += size;
    return ST_OK;
}

static status align(record_writer *recording)
{
    static const uint8_t zeros[RECORD_ALIGN] = {0};
    return write_bytes(recording, zeros, (size_t)(-recording->at % RECORD_ALIGN));
}

static void writer_free(record_writer *recording)
{
    if (recording->file)
        fclose(recording->file);
    free(recording->path);
    free(recording->temporary);
    free(recording->buffer);
    free(recording->rows);
    free(recording->images);
    free(recording);
}

void record_abandon(record_writer **recording)
{
    if (!recording || !*recording)
        return;
    if ((*recording)->file && (*recording)->named)
        unlink((*recording)->temporary);
    writer_free(*recording);
    *recording = NULL;
}

/* Opens a file that has no name until it is whole, so that a recording that breaks off, even by
 * SIGKILL, leaves nothing. */
static FILE *open_file(record_writer *recording)
{
    char *folder = strdup(recording->path), *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash)
        slash[slash == folder] = 0;
    const int fd = folder ? open(slash ? folder : ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
    free(folder);
    recording->named = fd < 0;
    return fd < 0 ? fopen(recording->temporary, "wbe") : fdopen(fd, "wb");
}

static status name_file(record_writer *recording)
{
    char unnamed[64];
    if (!recording->named) {
        snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", fileno(recording->file));
        unlink(recording->temporary); /* an earlier version may have left one */
        if (linkat(AT_FDCWD, unnamed, AT_FDCWD, recording->temporary, AT_SYMLINK_FOLLOW) != 0)
            return FAIL_IN(ST_CANT_CREATE, recording->temporary,
                           "the recording cannot be named: %s", strerror(errno));
        recording->named = true;
    }
    if (rename(recording->temporary, recording->path) != 0)
        return FAIL_IN(ST_CANT_CREATE, recording->path, "the recording cannot be named: %s",
                       strerror(errno));
    return ST_OK;
}

static status set_up(record_writer *recording, const char *path)
{
    recording->path = strdup(path);
    recording->buffer = malloc(FILE_BUFFER);
    recording->images = calloc(FIRST_SLOTS, sizeof *recording->images);
    recording->n_slots = FIRST_SLOTS;
    if (asprintf(&recording->temporary, "%s.tmp", path) < 0)
        recording->temporary = NULL;
    if (!recording->path || !recording->buffer || !recording->images || !recording->temporary)
        return FAIL(ST_NO_MEMORY, "no memory for a recording");
    recording->file = open_file(recording);
    if (!recording->file)
        return FAIL_IN(ST_CANT_CREATE, recording->temporary, "the recording cannot be created: %s",
                       strerror(errno));
    setvbuf(recording->file, recording->buffer, _IOFBF, FILE_BUFFER);
    return ST_OK;
}

status record_create(const char *path, const char *welcome, record_writer **out)
{
    uint8_t head[HEAD_BYTES] = {0};
    size_t size = strlen(welcome);
    hash128 hash = hash_bytes(welcome, size);
    status st = ST_OK;
    record_writer *recording = calloc(1, sizeof *recording);
    if (!recording)
        return FAIL(ST_NO_MEMORY, "no memory for a recording");
    TRY_OR(failed, set_up(recording, path));
    store_u32(head + HEAD_AT_MAGIC, RECORD_MAGIC);
    store_u16(head + HEAD_AT_VERSION, RECORD_VERSION);
    store_u64(head + HEAD_AT_WELCOME, size);
    memcpy(head + HEAD_AT_HASH, hash.bytes, sizeof hash.bytes);
    TRY_OR(failed, write_bytes(recording, head, sizeof head));
    TRY_OR(failed, write_bytes(recording, welcome, size));
    TRY_OR(failed, align(recording));
    *out = recording;
    return ST_OK;
failed:
    record_abandon(&recording);
    return st;
}

static status put_chunk_head(record_writer *recording, chunk_type type, uint64_t size, hash128 hash)
{
    uint8_t head[CHUNK_BYTES] = {0};
    store_u32(head + CHUNK_AT_TYPE, (uint32_t)type);
    store_u64(head + CHUNK_AT_SIZE, size);
    memcpy(head + CHUNK_AT_HASH, hash.bytes, sizeof hash.bytes);
    return write_bytes(recording, head, sizeof head);
}

/* The slot that holds this hash, or the free slot where it belongs. */
static image_entry *find_slot(image_entry *slots, size_t n_slots, hash128 hash)
{
    size_t i = (size_t)load_u64(hash.bytes) & (n_slots - 1);
    while (slots[i].offset && !hash_equal(slots[i].hash, hash))
        i = (i + 1) & (n_slots - 1);
    return &slots[i];
}

static status grow_images(record_writer *recording)
{
    if (2 * (recording->n_images + 1) <= recording->n_slots)
        return ST_OK;
    image_entry *slots = calloc(2 * recording->n_slots, sizeof *slots);
    if (!slots || recording->n_images >= UINT32_MAX) {
        free(slots);
        return FAIL(ST_NO_MEMORY, "no memory for %zu distinct images", recording->n_images);
    }
    for (size_t i = 0; i < recording->n_slots; i++)
        if (recording->images[i].offset)
            *find_slot(slots, 2 * recording->n_slots, recording->images[i].hash) =
                recording->images[i];
    free(recording->images);
    recording->images = slots;
    recording->n_slots *= 2;
    return ST_OK;
}

static status put_image(record_writer *recording, span part, hash128 hash)
{
    TRY(grow_images(recording));
    image_entry *slot = find_slot(recording->images, recording->n_slots, hash);
    if (slot->offset)
        return ST_OK;
    uint64_t offset = recording->at;
    TRY(put_chunk_head(recording, CHUNK_IMAGE, part.size, hash));
    TRY(write_bytes(recording, part.data, part.size));
    TRY(align(recording));
    *slot = (image_entry){hash, offset};
    recording->n_images++;
    return ST_OK;
}

static status note_row(record_writer *recording)
{
    if (recording->n_rows == recording->row_capacity) {
        size_t capacity = recording->row_capacity ? 2 * recording->row_capacity : FIRST_ROWS;
        uint64_t *rows = realloc(recording->rows, capacity * sizeof *rows);
        if (!rows)
            return FAIL(ST_NO_MEMORY, "no memory for %zu recorded rows", capacity);
        recording->rows = rows;
        recording->row_capacity = capacity;
    }
    recording->rows[recording->n_rows++] = recording->at;
    return ST_OK;
}

status record_add(record_writer *recording, const wire_msg *message)
{
    frame header;
    hasher *hash = NULL;
    hash128 *images = NULL;
    uint8_t block_size[8];
    status st = ST_OK;
    TRY(frame_decode(wire_msg_part(message, 0), "row to be recorded", &header));
    if (header.kind != KIND_ROW || (wire_msg_parts(message) != 2 + (size_t)header.n_images &&
                                    wire_msg_parts(message) != 3 + (size_t)header.n_images))
        return FAIL(ST_BAD_INPUT, "a message of kind %s with %zu parts cannot be recorded as a row",
                    frame_kind_name(header.kind), wire_msg_parts(message));
    if (!(images = malloc(((size_t)header.n_images + 1) * sizeof *images)))
        return FAIL(ST_NO_MEMORY, "no memory for the hashes of %u images", header.n_images);
    for (uint32_t i = 0; i < header.n_images; i++) {
        span part = wire_msg_part(message, 2 + (size_t)i);
        images[i] = hash_bytes(part.data, part.size);
        TRY_OR(done, put_image(recording, part, images[i]));
    }
    span head = wire_msg_part(message, 0), block = wire_msg_part(message, 1),
         tag = wire_msg_part(message, 2 + (size_t)header.n_images);
    store_u64(block_size, block.size);
    size_t image_bytes = (size_t)header.n_images * ROW_IMAGE_BYTES;
    TRY_OR(done, hasher_new(&hash));
    hasher_add(hash, head.data, head.size);
    hasher_add(hash, block_size, sizeof block_size);
    hasher_add(hash, block.data, block.size);
    hasher_add(hash, images, image_bytes);
    hasher_add(hash, tag.data, tag.size);
    TRY_OR(done, note_row(recording));
    TRY_OR(done,
           put_chunk_head(recording, CHUNK_ROW, ROW_AT_BLOCK + block.size + image_bytes + tag.size,
                          hasher_value(hash)));
    TRY_OR(done, write_bytes(recording, head.data, head.size));
    TRY_OR(done, write_bytes(recording, block_size, sizeof block_size));
    TRY_OR(done, write_bytes(recording, block.data, block.size));
    TRY_OR(done, write_bytes(recording, images, image_bytes));
    TRY_OR(done, write_bytes(recording, tag.data, tag.size));
    TRY_OR(done, align(recording));
done:
    hasher_free(&hash);
    free(images);
    return st;
}

static int by_hash(const void *left, const void *right)
{
    const image_entry *first = left, *second = right;
    return memcmp(first->hash.bytes, second->hash.bytes, sizeof first->hash.bytes);
}

static status put_hashed(record_writer *recording, hasher *hash, const uint8_t *data, size_t size)
{
    hasher_add(hash, data, size);
    return write_bytes(recording, data, size);
}

/* Writes both indexes and the tail. The slots are packed and sorted in place, so nothing can be
 * added after this. */
static status put_index(record_writer *recording, hasher *hash)
{
    uint8_t tail[TAIL_BYTES] = {0};
    size_t count = 0;
    uint64_t offset = recording->at;
    for (size_t i = 0; i < recording->n_slots; i++)
        if (recording->images[i].offset)
            recording->images[count++] = recording->images[i];
    qsort(recording->images, count, sizeof *recording->images, by_hash);
    for (size_t i = 0; i < recording->n_rows; i++) {
        uint8_t entry[INDEX_ROW_BYTES];
        store_u64(entry, recording->rows[i]);
        TRY(put_hashed(recording, hash, entry, sizeof entry));
    }
    for (size_t i = 0; i < count; i++) {
        uint8_t entry[INDEX_IMAGE_BYTES];
        memcpy(entry, recording->images[i].hash.bytes, sizeof recording->images[i].hash.bytes);
        store_u64(entry + sizeof recording->images[i].hash.bytes, recording->images[i].offset);
        TRY(put_hashed(recording, hash, entry, sizeof entry));
    }
    store_u64(tail + TAIL_AT_INDEX, offset);
    store_u64(tail + TAIL_AT_ROWS, recording->n_rows);
    store_u32(tail + TAIL_AT_IMAGES, (uint32_t)count);
    hasher_add(hash, tail, TAIL_AT_CHECK);
    hash128 check = hasher_value(hash);
    memcpy(tail + TAIL_AT_CHECK, check.bytes, TAIL_CHECK_BYTES);
    store_u32(tail + TAIL_AT_MAGIC, RECORD_TAIL);
    return write_bytes(recording, tail, sizeof tail);
}

status record_finish(record_writer **writer)
{
    record_writer *recording = *writer;
    hasher *hash = NULL;
    status st = hasher_new(&hash);
    if (st == ST_OK)
        st = put_index(recording, hash);
    hasher_free(&hash);
    if (st == ST_OK && (fflush(recording->file) != 0 || fsync(fileno(recording->file)) != 0))
        st = write_failed(recording);
    if (st == ST_OK)
        st = name_file(recording);
    if (st != ST_OK) {
        record_abandon(writer);
        return st;
    }
    st = file_sync_parent(recording->path);
    writer_free(recording);
    *writer = NULL;
    return st;
}
