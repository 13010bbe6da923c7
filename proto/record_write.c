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
#include "proto/record.h"
#include "proto/record_format.h"

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

static status write_failed(const record_writer *w)
{
    return FAIL_IN(ST_IO, w->temporary, "the recording cannot be written: %s", strerror(errno));
}

static status write_bytes(record_writer *w, const void *data, size_t size)
{
    if (size > 0 && fwrite(data, 1, size, w->file) != size)
        return write_failed(w);
    w->at += size;
    return ST_OK;
}

static status align(record_writer *w)
{
    static const uint8_t zeros[RECORD_ALIGN] = {0};
    return write_bytes(w, zeros, (size_t)(-w->at % RECORD_ALIGN));
}

static void writer_free(record_writer *w)
{
    if (w->file)
        fclose(w->file);
    free(w->path);
    free(w->temporary);
    free(w->buffer);
    free(w->rows);
    free(w->images);
    free(w);
}

void record_abandon(record_writer **w)
{
    if (!w || !*w)
        return;
    if ((*w)->file && (*w)->named)
        unlink((*w)->temporary);
    writer_free(*w);
    *w = NULL;
}

/* Opens a file that has no name until it is whole, so that a recording that breaks off, even by
 * SIGKILL, leaves nothing. */
static FILE *open_file(record_writer *w)
{
    char *folder = strdup(w->path), *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash)
        slash[slash == folder] = 0;
    const int fd = folder ? open(slash ? folder : ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
    free(folder);
    w->named = fd < 0;
    return fd < 0 ? fopen(w->temporary, "wbe") : fdopen(fd, "wb");
}

static status name_file(record_writer *w)
{
    char unnamed[64];
    if (!w->named) {
        snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", fileno(w->file));
        unlink(w->temporary); /* an earlier version may have left one */
        if (linkat(AT_FDCWD, unnamed, AT_FDCWD, w->temporary, AT_SYMLINK_FOLLOW) != 0)
            return FAIL_IN(ST_CANT_CREATE, w->temporary, "the recording cannot be named: %s",
                           strerror(errno));
        w->named = true;
    }
    if (rename(w->temporary, w->path) != 0)
        return FAIL_IN(ST_CANT_CREATE, w->path, "the recording cannot be named: %s",
                       strerror(errno));
    return ST_OK;
}

static status set_up(record_writer *w, const char *path)
{
    w->path = strdup(path);
    w->buffer = malloc(FILE_BUFFER);
    w->images = calloc(FIRST_SLOTS, sizeof *w->images);
    w->n_slots = FIRST_SLOTS;
    if (asprintf(&w->temporary, "%s.tmp", path) < 0)
        w->temporary = NULL;
    if (!w->path || !w->buffer || !w->images || !w->temporary)
        return FAIL(ST_NO_MEMORY, "no memory for a recording");
    w->file = open_file(w);
    if (!w->file)
        return FAIL_IN(ST_CANT_CREATE, w->temporary, "the recording cannot be created: %s",
                       strerror(errno));
    setvbuf(w->file, w->buffer, _IOFBF, FILE_BUFFER);
    return ST_OK;
}

status record_create(const char *path, const char *welcome, record_writer **out)
{
    uint8_t head[HEAD_BYTES] = {0};
    size_t size = strlen(welcome);
    hash128 hash = hash_bytes(welcome, size);
    status st = ST_OK;
    record_writer *w = calloc(1, sizeof *w);
    if (!w)
        return FAIL(ST_NO_MEMORY, "no memory for a recording");
    TRY_OR(failed, set_up(w, path));
    store_u32(head + HEAD_AT_MAGIC, RECORD_MAGIC);
    store_u16(head + HEAD_AT_VERSION, RECORD_VERSION);
    store_u64(head + HEAD_AT_WELCOME, size);
    memcpy(head + HEAD_AT_HASH, hash.bytes, sizeof hash.bytes);
    TRY_OR(failed, write_bytes(w, head, sizeof head));
    TRY_OR(failed, write_bytes(w, welcome, size));
    TRY_OR(failed, align(w));
    *out = w;
    return ST_OK;
failed:
    record_abandon(&w);
    return st;
}

static status put_chunk_head(record_writer *w, chunk_type type, uint64_t size, hash128 hash)
{
    uint8_t head[CHUNK_BYTES] = {0};
    store_u32(head + CHUNK_AT_TYPE, (uint32_t)type);
    store_u64(head + CHUNK_AT_SIZE, size);
    memcpy(head + CHUNK_AT_HASH, hash.bytes, sizeof hash.bytes);
    return write_bytes(w, head, sizeof head);
}

/* The slot that holds this hash, or the free slot where it belongs. */
static image_entry *find_slot(image_entry *slots, size_t n_slots, hash128 hash)
{
    size_t i = (size_t)load_u64(hash.bytes) & (n_slots - 1);
    while (slots[i].offset && !hash_equal(slots[i].hash, hash))
        i = (i + 1) & (n_slots - 1);
    return &slots[i];
}

static status grow_images(record_writer *w)
{
    if (2 * (w->n_images + 1) <= w->n_slots)
        return ST_OK;
    image_entry *slots = calloc(2 * w->n_slots, sizeof *slots);
    if (!slots || w->n_images >= UINT32_MAX) {
        free(slots);
        return FAIL(ST_NO_MEMORY, "no memory for %zu distinct images", w->n_images);
    }
    for (size_t i = 0; i < w->n_slots; i++)
        if (w->images[i].offset)
            *find_slot(slots, 2 * w->n_slots, w->images[i].hash) = w->images[i];
    free(w->images);
    w->images = slots;
    w->n_slots *= 2;
    return ST_OK;
}

static status put_image(record_writer *w, span part, hash128 hash)
{
    TRY(grow_images(w));
    image_entry *slot = find_slot(w->images, w->n_slots, hash);
    if (slot->offset)
        return ST_OK;
    uint64_t offset = w->at;
    TRY(put_chunk_head(w, CHUNK_IMAGE, part.size, hash));
    TRY(write_bytes(w, part.data, part.size));
    TRY(align(w));
    *slot = (image_entry){hash, offset};
    w->n_images++;
    return ST_OK;
}

static status note_row(record_writer *w)
{
    if (w->n_rows == w->row_capacity) {
        size_t capacity = w->row_capacity ? 2 * w->row_capacity : FIRST_ROWS;
        uint64_t *rows = realloc(w->rows, capacity * sizeof *rows);
        if (!rows)
            return FAIL(ST_NO_MEMORY, "no memory for %zu recorded rows", capacity);
        w->rows = rows;
        w->row_capacity = capacity;
    }
    w->rows[w->n_rows++] = w->at;
    return ST_OK;
}

status record_add(record_writer *w, const wire_msg *m)
{
    frame f;
    hasher *h = NULL;
    hash128 *images = NULL;
    uint8_t block_size[8];
    status st = ST_OK;
    TRY(frame_decode(wire_msg_part(m, 0), "row to be recorded", &f));
    if (f.kind != KIND_ROW || wire_msg_parts(m) != 2 + (size_t)f.n_images)
        return FAIL(ST_BAD_INPUT, "a message of kind %s with %zu parts cannot be recorded as a row",
                    frame_kind_name(f.kind), wire_msg_parts(m));
    if (!(images = malloc(((size_t)f.n_images + 1) * sizeof *images)))
        return FAIL(ST_NO_MEMORY, "no memory for the hashes of %u images", f.n_images);
    for (uint32_t i = 0; i < f.n_images; i++) {
        span part = wire_msg_part(m, 2 + (size_t)i);
        images[i] = hash_bytes(part.data, part.size);
        TRY_OR(done, put_image(w, part, images[i]));
    }
    span head = wire_msg_part(m, 0), block = wire_msg_part(m, 1);
    store_u64(block_size, block.size);
    size_t image_bytes = (size_t)f.n_images * ROW_IMAGE_BYTES;
    TRY_OR(done, hasher_new(&h));
    hasher_add(h, head.data, head.size);
    hasher_add(h, block_size, sizeof block_size);
    hasher_add(h, block.data, block.size);
    hasher_add(h, images, image_bytes);
    TRY_OR(done, note_row(w));
    TRY_OR(done,
           put_chunk_head(w, CHUNK_ROW, ROW_AT_BLOCK + block.size + image_bytes, hasher_value(h)));
    TRY_OR(done, write_bytes(w, head.data, head.size));
    TRY_OR(done, write_bytes(w, block_size, sizeof block_size));
    TRY_OR(done, write_bytes(w, block.data, block.size));
    TRY_OR(done, write_bytes(w, images, image_bytes));
    TRY_OR(done, align(w));
done:
    hasher_free(&h);
    free(images);
    return st;
}

static int by_hash(const void *a, const void *b)
{
    const image_entry *x = a, *y = b;
    return memcmp(x->hash.bytes, y->hash.bytes, sizeof x->hash.bytes);
}

static status put_hashed(record_writer *w, hasher *h, const uint8_t *data, size_t size)
{
    hasher_add(h, data, size);
    return write_bytes(w, data, size);
}

/* Writes both indexes and the tail. The slots are packed and sorted in place, so nothing can be
 * added after this. */
static status put_index(record_writer *w, hasher *h)
{
    uint8_t tail[TAIL_BYTES] = {0};
    size_t n = 0;
    uint64_t offset = w->at;
    for (size_t i = 0; i < w->n_slots; i++)
        if (w->images[i].offset)
            w->images[n++] = w->images[i];
    qsort(w->images, n, sizeof *w->images, by_hash);
    for (size_t i = 0; i < w->n_rows; i++) {
        uint8_t entry[INDEX_ROW_BYTES];
        store_u64(entry, w->rows[i]);
        TRY(put_hashed(w, h, entry, sizeof entry));
    }
    for (size_t i = 0; i < n; i++) {
        uint8_t entry[INDEX_IMAGE_BYTES];
        memcpy(entry, w->images[i].hash.bytes, sizeof w->images[i].hash.bytes);
        store_u64(entry + sizeof w->images[i].hash.bytes, w->images[i].offset);
        TRY(put_hashed(w, h, entry, sizeof entry));
    }
    store_u64(tail + TAIL_AT_INDEX, offset);
    store_u64(tail + TAIL_AT_ROWS, w->n_rows);
    store_u32(tail + TAIL_AT_IMAGES, (uint32_t)n);
    hasher_add(h, tail, TAIL_AT_CHECK);
    hash128 check = hasher_value(h);
    memcpy(tail + TAIL_AT_CHECK, check.bytes, TAIL_CHECK_BYTES);
    store_u32(tail + TAIL_AT_MAGIC, RECORD_TAIL);
    return write_bytes(w, tail, sizeof tail);
}

status record_finish(record_writer **writer)
{
    record_writer *w = *writer;
    hasher *h = NULL;
    status st = hasher_new(&h);
    if (st == ST_OK)
        st = put_index(w, h);
    hasher_free(&h);
    if (st == ST_OK && (fflush(w->file) != 0 || fsync(fileno(w->file)) != 0))
        st = write_failed(w);
    if (st == ST_OK)
        st = name_file(w);
    if (st != ST_OK) {
        record_abandon(writer);
        return st;
    }
    st = file_sync_parent(w->path);
    writer_free(w);
    *writer = NULL;
    return st;
}
