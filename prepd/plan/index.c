/* SPDX-License-Identifier: Apache-2.0 */
/* index.c: the index in memory and as a file.
 *
 * Records have the same form in both, so a loaded index is simply its mapped file. Numbers are
 * little-endian and are read field by field.
 *
 *   offset  bytes
 *        0      4  magic "TSIX"
 *        4      4  version (INDEX_VERSION, or WITH_BEGINNINGS)
 *        8     16  key: the options and the data set to which this index belongs
 *       24     16  digest of the contents, as index_seal computes it
 *       40      8  number of samples
 *       48      8  number of images
 *       56      8  bytes of texts
 *       64     16  XXH3-128 of the whole file with these 16 bytes as zeros
 *       80     48  for each image: file bytes i64, modification time in ns i64, width i32,
 *                  height i32, cause u64, frames i64, frames per second f64
 *              16  for each sample: text tokens i32, targets i32, cause u64
 *              24  for each sample, only in an index with beginnings: before i64, agrees i32, head
 *                  i32, first label i32, zero u32
 *                  the texts, each ended by a zero byte; a cause is an offset into them, 0 for none
 *
 * An index without beginnings is written in the form that it had before there were any, so that
 * the files of older builds stay valid. When the form changes, raise both versions: older files are
 * then built again. When a record gets a field that the stream depends on, add it to digest_of as
 * well. */
#include "prepd/plan/index.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/span.h"
#include "prepd/dataset/tables.h"

enum {
    INDEX_MAGIC = 0x58495354,
    INDEX_VERSION = 2,
    WITH_BEGINNINGS = 3,
    HEADER_BYTES = 80,
    CHECK_AT = 64, /* where the checksum stands */
    IMAGE_BYTES = 48,
    SAMPLE_BYTES = 16,
    BEGINNING_BYTES = 24,
    N_PARTS = 4, /* images, samples, beginnings, texts */
};
/* No data set has more records than this, and it keeps every product far from overflow. */
static const uint64_t MAX_RECORDS = UINT64_C(1) << 40;
static const double MIN_FPS = 1e-10, MAX_FPS = 1e9; /* the range that workers accept */

struct data_index {
    int64_t n_samples, n_images;
    const uint8_t *images, *samples; /* the records: in own_images and own_samples, or in the map */
    const uint8_t *beginnings;       /* NULL without them; in own_beginnings, or in the map */
    const char *texts;
    size_t text_bytes;
    hash128 identity;         /* of the data set; while building (index_identify) */
    hash128 contents, digest; /* they differ after index_mix */
    /* Only while building: */
    uint8_t *own_images, *own_samples, *own_beginnings, *present;
    int64_t missing;
    text_pool pool;
    /* Only of a loaded index: */
    void *map;
    size_t map_bytes;
};

status index_new(int64_t n_samples, int64_t n_images, data_index **out)
{
    if (n_samples < 0 || n_images < 0 || (uint64_t)n_samples > MAX_RECORDS ||
        (uint64_t)n_images > MAX_RECORDS)
        return FAIL(ST_BAD_INPUT, "an index cannot have %" PRId64 " samples and %" PRId64 " images",
                    n_samples, n_images);
    data_index *index = (data_index *)calloc(1, sizeof *index);
    if (!index)
        return FAIL(ST_NO_MEMORY, "no memory for an index");
    index->n_samples = n_samples;
    index->n_images = n_images;
    index->missing = n_samples + n_images;
    index->own_images = (uint8_t *)calloc((size_t)n_images + 1, IMAGE_BYTES);
    index->own_samples = (uint8_t *)calloc((size_t)n_samples + 1, SAMPLE_BYTES);
    index->present = (uint8_t *)calloc((size_t)(n_samples + n_images) + 1, 1);
    if (!index->own_images || !index->own_samples || !index->present) {
        index_free(&index);
        return FAIL(ST_NO_MEMORY, "no memory for an index of %" PRId64 " samples", n_samples);
    }
    index->images = index->own_images;
    index->samples = index->own_samples;
    *out = index;
    return ST_OK;
}

void index_free(data_index **index)
{
    if (!index || !*index)
        return;
    free((*index)->own_images);
    free((*index)->own_samples);
    free((*index)->own_beginnings);
    free((*index)->present);
    text_pool_done(&(*index)->pool);
    if ((*index)->map)
        munmap((*index)->map, (*index)->map_bytes);
    free(*index);
    *index = NULL;
}

/* A double as its IEEE 754 bits, which are then stored little-endian like the other numbers. */
static uint64_t bits_of(double fps)
{
    uint64_t bits;
    memcpy(&bits, &fps, sizeof bits);
    return bits;
}

static status put_cause(data_index *index, const char *cause, int64_t *out)
{
    *out = 0;
    return cause ? text_pool_add(&index->pool, cause, strlen(cause), out) : ST_OK;
}

static void mark_present(data_index *index, int64_t at)
{
    index->missing -= !index->present[at];
    index->present[at] = 1;
}

status index_put_image(data_index *index, int64_t image, const index_image *record)
{
    int64_t cause;
    if (!index->present || image < 0 || image >= index->n_images)
        return FAIL(ST_BAD_INPUT, "the index cannot take image record %" PRId64 " of %" PRId64,
                    image, index->n_images);
    if (!record->cause &&
        (record->width < 1 || record->height < 1 || record->file_bytes < 0 || record->frames < 0 ||
         !(record->fps == 0 || (record->fps >= MIN_FPS && record->fps <= MAX_FPS))))
        return FAIL(ST_BAD_INPUT,
                    "image record %" PRId64 " is impossible: %d x %d pixels in %" PRId64
                    " bytes, %" PRId64 " frames at %g per second",
                    image, record->width, record->height, record->file_bytes, record->frames,
                    record->fps);
    TRY(put_cause(index, record->cause, &cause));
    uint8_t *at = index->own_images + image * IMAGE_BYTES;
    store_u64(at, (uint64_t)record->file_bytes);
    store_u64(at + 8, (uint64_t)record->mtime_ns);
    store_u32(at + 16, (uint32_t)(record->cause ? 0 : record->width));
    store_u32(at + 20, (uint32_t)(record->cause ? 0 : record->height));
    store_u64(at + 24, (uint64_t)cause);
    store_u64(at + 32, (uint64_t)(record->cause ? 0 : record->frames));
    store_u64(at + 40, record->cause ? 0 : bits_of(record->fps));
    mark_present(index, index->n_samples + image);
    return ST_OK;
}

status index_put_sample(data_index *index, int64_t at, const index_sample *record)
{
    int64_t cause;
    if (!index->present || at < 0 || at >= index->n_samples)
        return FAIL(ST_BAD_INPUT, "the index cannot take sample record %" PRId64 " of %" PRId64, at,
                    index->n_samples);
    if (!record->cause &&
        (record->text_tokens < 1 || record->targets < 0 || record->targets > record->text_tokens))
        return FAIL(ST_BAD_INPUT,
                    "sample record %" PRId64 " is impossible: %d tokens, %d of them targets", at,
                    record->text_tokens, record->targets);
    TRY(put_cause(index, record->cause, &cause));
    uint8_t *from = index->own_samples + at * SAMPLE_BYTES;
    store_u32(from, (uint32_t)record->text_tokens);
    store_u32(from + 4, (uint32_t)record->targets);
    store_u64(from + 8, (uint64_t)cause);
    mark_present(index, at);
    return ST_OK;
}

status index_take_beginnings(data_index *index)
{
    index->own_beginnings = (uint8_t *)calloc((size_t)index->n_samples + 1, BEGINNING_BYTES);
    if (!index->own_beginnings)
        return FAIL(ST_NO_MEMORY, "no memory for an index of %" PRId64 " samples",
                    index->n_samples);
    index->beginnings = index->own_beginnings;
    return ST_OK;
}

bool index_has_beginnings(const data_index *index)
{
    return index->beginnings != NULL;
}

bool index_has_sample(const data_index *index, int64_t at)
{
    return !index->present || index->present[at];
}

/* Whether the beginning of a sample, whose own record is there, can be true. */
static bool is_possible(const data_index *index, int64_t at, const index_beginning *record)
{
    index_sample own;
    index_sample_get(index, at, &own);
    if (own.cause)
        return record->before == 0 && record->agrees == 0 && record->head == 0 &&
               record->first_label == 0;
    return record->before >= 0 && record->before <= at && record->agrees >= 0 &&
           record->agrees <= own.text_tokens && (record->before > 0 || record->agrees == 0) &&
           record->head >= 0 && record->head < own.text_tokens && record->first_label >= 1 &&
           record->first_label < own.text_tokens;
}

status index_put_beginning(data_index *index, int64_t at, const index_beginning *record)
{
    if (!index->own_beginnings || at < 0 || at >= index->n_samples || !index->present ||
        !index->present[at])
        return FAIL(ST_BAD_INPUT, "the index cannot take the beginning of sample %" PRId64, at);
    if (!is_possible(index, at, record))
        return FAIL(ST_BAD_INPUT,
                    "the beginning of sample %" PRId64 " is impossible: it agrees with the sample "
                    "%" PRId64 " before it in %d tokens, has %d before its last picture, and its "
                    "first label is token %d",
                    at, record->before, record->agrees, record->head, record->first_label);
    uint8_t *to = index->own_beginnings + at * BEGINNING_BYTES;
    store_u64(to, (uint64_t)record->before);
    store_u32(to + 8, (uint32_t)record->agrees);
    store_u32(to + 12, (uint32_t)record->head);
    store_u32(to + 16, (uint32_t)record->first_label);
    return ST_OK;
}

void index_beginning_get(const data_index *index, int64_t at, index_beginning *out)
{
    assert(index->beginnings && at >= 0 && at < index->n_samples);
    const uint8_t *from = index->beginnings + at * BEGINNING_BYTES;
    out->before = (int64_t)load_u64(from);
    out->agrees = (int32_t)load_u32(from + 8);
    out->head = (int32_t)load_u32(from + 12);
    out->first_label = (int32_t)load_u32(from + 16);
}

/* Takes the predecessor from samples whose predecessor was refused, and everything from samples
 * that were refused themselves. */
static void settle_beginnings(data_index *index)
{
    for (int64_t i = 0; index->own_beginnings && i < index->n_samples; i++) {
        uint8_t *own = index->own_beginnings + i * BEGINNING_BYTES;
        index_sample record;
        index_sample_get(index, i, &record);
        if (record.cause)
            memset(own, 0, BEGINNING_BYTES);
        index_sample_get(index, i - (int64_t)load_u64(own), &record);
        if (record.cause)
            memset(own, 0, 12);
    }
}

void index_identify(data_index *index, hash128 contents)
{
    index->identity = contents;
}

/* A hash of everything that the stream depends on. The modification times of files are left out,
 * and so are the texts of causes, whose places depend on the order in which they came. */
static status digest_of(const data_index *index, hash128 identity, hash128 *out)
{
    hasher *hash = NULL;
    TRY(hasher_new(&hash));
    hasher_add(hash, identity.bytes, sizeof identity.bytes);
    hasher_add_u64(hash, (uint64_t)index->n_images);
    for (int64_t j = 0; j < index->n_images; j++) {
        index_image image;
        index_image_get(index, j, &image);
        hasher_add_u64(hash, (uint64_t)image.file_bytes);
        hasher_add_u64(hash, (uint64_t)(uint32_t)image.width << 32 | (uint32_t)image.height);
        hasher_add_u64(hash, image.cause != NULL);
        if (image.frames > 0) {
            hasher_add_u64(hash, (uint64_t)image.frames);
            hasher_add_u64(hash, bits_of(image.fps));
        }
    }
    hasher_add_u64(hash, (uint64_t)index->n_samples);
    for (int64_t i = 0; i < index->n_samples; i++) {
        index_sample record;
        index_sample_get(index, i, &record);
        hasher_add_u64(hash,
                       (uint64_t)(uint32_t)record.text_tokens << 32 | (uint32_t)record.targets);
        hasher_add_u64(hash, record.cause != NULL);
    }
    if (index->beginnings) /* an index without them keeps the digest it always had */
        hasher_add(hash, index->beginnings, (size_t)index->n_samples * BEGINNING_BYTES);
    *out = hasher_value(hash);
    hasher_free(&hash);
    return ST_OK;
}

status index_seal(data_index *index)
{
    if (index->missing)
        return FAIL(ST_INTERNAL, "the index lacks %" PRId64 " of %" PRId64 " records",
                    index->missing, index->n_samples + index->n_images);
    index->texts = index->pool.bytes ? index->pool.bytes : "";
    index->text_bytes = index->pool.bytes ? index->pool.size : 1;
    settle_beginnings(index);
    TRY(digest_of(index, index->identity, &index->contents));
    index->digest = index->contents;
    free(index->present);
    index->present = NULL;
    return ST_OK;
}

status index_mix(data_index *index, hash128 identity)
{
    return digest_of(index, identity, &index->digest);
}

int64_t index_samples(const data_index *index)
{
    return index->n_samples;
}

int64_t index_images(const data_index *index)
{
    return index->n_images;
}

hash128 index_digest(const data_index *index)
{
    return index->digest;
}

hash128 index_contents(const data_index *index)
{
    return index->contents;
}

static const char *cause_at(const data_index *index, uint64_t offset)
{
    return offset ? (index->texts ? index->texts : index->pool.bytes) + offset : NULL;
}

void index_image_get(const data_index *index, int64_t image, index_image *out)
{
    assert(image >= 0 && image < index->n_images);
    const uint8_t *at = index->images + image * IMAGE_BYTES;
    out->file_bytes = (int64_t)load_u64(at);
    out->mtime_ns = (int64_t)load_u64(at + 8);
    out->width = (int32_t)load_u32(at + 16);
    out->height = (int32_t)load_u32(at + 20);
    out->cause = cause_at(index, load_u64(at + 24));
    out->frames = (int64_t)load_u64(at + 32);
    const uint64_t fps = load_u64(at + 40);
    memcpy(&out->fps, &fps, sizeof fps);
}

void index_sample_get(const data_index *index, int64_t at, index_sample *out)
{
    assert(at >= 0 && at < index->n_samples);
    const uint8_t *from = index->samples + at * SAMPLE_BYTES;
    out->text_tokens = (int32_t)load_u32(from);
    out->targets = (int32_t)load_u32(from + 4);
    out->cause = cause_at(index, load_u64(from + 8));
}

/* The checksum of header and body, with the checksum's own bytes as zeros. */
static status hash_index(const uint8_t header[HEADER_BYTES], const span body[N_PARTS], hash128 *out)
{
    uint8_t copy[HEADER_BYTES];
    hasher *hash = NULL;
    memcpy(copy, header, sizeof copy);
    memset(copy + CHECK_AT, 0, sizeof(hash128));
    TRY(hasher_new(&hash));
    hasher_add(hash, copy, sizeof copy);
    for (int k = 0; k < N_PARTS; k++)
        hasher_add(hash, body[k].data, body[k].size);
    *out = hasher_value(hash);
    hasher_free(&hash);
    return ST_OK;
}

static status write_part(int fd, const void *data, size_t size, const char *path)
{
    return file_write_all(fd, data, size)
               ? ST_OK
               : FAIL_IN(ST_IO, path, "writing the index failed: %s", strerror(errno));
}

status index_save(const data_index *index, const char *path, hash128 key)
{
    uint8_t header[HEADER_BYTES] = {0};
    char temporary[4096];
    hash128 check;
    status st;
    assert(!index->present); /* it is sealed */
    const bool begins = index->beginnings != NULL;
    span body[N_PARTS] = {
        span_of(index->images, (size_t)index->n_images * IMAGE_BYTES),
        span_of(index->samples, (size_t)index->n_samples * SAMPLE_BYTES),
        span_of(index->beginnings, begins ? (size_t)index->n_samples * BEGINNING_BYTES : 0),
        span_of(index->texts, index->text_bytes),
    };
    store_u32(header, INDEX_MAGIC);
    store_u32(header + 4, begins ? WITH_BEGINNINGS : INDEX_VERSION);
    memcpy(header + 8, key.bytes, sizeof key.bytes);
    memcpy(header + 24, index->contents.bytes, sizeof index->contents.bytes);
    store_u64(header + 40, (uint64_t)index->n_samples);
    store_u64(header + 48, (uint64_t)index->n_images);
    store_u64(header + 56, (uint64_t)index->text_bytes);
    TRY(hash_index(header, body, &check));
    memcpy(header + CHECK_AT, check.bytes, sizeof check.bytes);
    /* The temporary name has our process id, so that two daemons cannot write into one file. */
    if (snprintf(temporary, sizeof temporary, "%s.%d.tmp", path, (int)getpid()) >=
        (int)sizeof temporary)
        return FAIL_IN(ST_CANT_CREATE, path, "the path of the index is too long");
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return FAIL_IN(ST_CANT_CREATE, temporary, "cannot create: %s", strerror(errno));
    TRY_OR(done, write_part(fd, header, sizeof header, temporary));
    for (int k = 0; k < N_PARTS; k++)
        TRY_OR(done, write_part(fd, body[k].data, body[k].size, temporary));
    /* There is no fsync, since the dispatcher must not wait for a disk to which checkpoints are
     * being written. If the machine stops now, the file has a wrong checksum and is built again. */
done:
    if (close(fd) && st == ST_OK)
        st = FAIL_IN(ST_IO, temporary, "closing failed: %s", strerror(errno));
    if (st == ST_OK && rename(temporary, path))
        st = FAIL_IN(ST_CANT_CREATE, path, "cannot rename %s to this: %s", temporary,
                     strerror(errno));
    if (st != ST_OK)
        unlink(temporary);
    return st;
}

/* Whether every cause is an offset inside the texts. The texts end with a zero byte, so every cause
 * then ends inside them as well. */
static bool causes_inside(const uint8_t *records, uint64_t count, size_t stride, size_t at,
                          size_t bytes)
{
    for (uint64_t i = 0; i < count; i++)
        if (load_u64(records + i * stride + at) >= bytes)
            return false;
    return true;
}

/* Checks what the plan relies on: every predecessor is a sample before, and every count lies inside
 * its sample. */
static status check_beginnings(const data_index *index, const char *source)
{
    for (int64_t i = 0; index->beginnings && i < index->n_samples; i++) {
        index_beginning record;
        index_beginning_get(index, i, &record);
        if (!is_possible(index, i, &record))
            return FAIL_IN(
                ST_BAD_INPUT, source,
                "the index is damaged: the beginning of sample %" PRId64 " is impossible", i);
    }
    return ST_OK;
}

status index_parse(span file, const char *source, hash128 key, data_index **out)
{
    hash128 found, check;
    if (file.size < HEADER_BYTES)
        return FAIL_AT(ST_BAD_INPUT, source, -1, (int64_t)file.size,
                       "the index ends inside its header of %d bytes", HEADER_BYTES);
    const uint8_t *data = file.data;
    if (load_u32(data) != INDEX_MAGIC)
        return FAIL_AT(ST_BAD_INPUT, source, -1, 0,
                       "this is not an index: it lacks the magic TSIX");
    const bool begins = load_u32(data + 4) == WITH_BEGINNINGS;
    if (!begins && load_u32(data + 4) != INDEX_VERSION)
        return FAIL_AT(ST_BAD_INPUT, source, -1, 4,
                       "the index has version %u, and this program reads versions %d and %d",
                       load_u32(data + 4), INDEX_VERSION, WITH_BEGINNINGS);
    if (memcmp(data + 8, key.bytes, sizeof key.bytes) != 0)
        return FAIL_AT(ST_BAD_INPUT, source, -1, 8,
                       "the index belongs to other options or other data");
    uint64_t n_samples = load_u64(data + 40), n_images = load_u64(data + 48),
             texts = load_u64(data + 56);
    if (n_samples > MAX_RECORDS || n_images > MAX_RECORDS || texts < 1 || texts > file.size)
        return FAIL_AT(ST_BAD_INPUT, source, -1, 40, "the counts in the header are out of range");
    const uint64_t image_bytes = n_images * IMAGE_BYTES, sample_bytes = n_samples * SAMPLE_BYTES,
                   beginning_bytes = begins ? n_samples * BEGINNING_BYTES : 0,
                   all = image_bytes + sample_bytes + beginning_bytes + texts;
    if (file.size - HEADER_BYTES != all)
        return FAIL_AT(ST_BAD_INPUT, source, -1, (int64_t)file.size,
                       "by its header the index should have %" PRIu64 " bytes after the header",
                       all);
    data += HEADER_BYTES;
    span body[N_PARTS] = {
        span_of(data, image_bytes),
        span_of(data + image_bytes, sample_bytes),
        span_of(data + image_bytes + sample_bytes, beginning_bytes),
        span_of(data + image_bytes + sample_bytes + beginning_bytes, texts),
    };
    data = file.data;
    TRY(hash_index(data, body, &check));
    memcpy(found.bytes, data + CHECK_AT, sizeof found.bytes);
    if (!hash_equal(found, check))
        return FAIL_AT(ST_BAD_INPUT, source, -1, CHECK_AT,
                       "the index is damaged: its checksum does not match");
    if (body[3].data[texts - 1] != 0 ||
        !causes_inside(body[0].data, n_images, IMAGE_BYTES, 24, texts) ||
        !causes_inside(body[1].data, n_samples, SAMPLE_BYTES, 8, texts))
        return FAIL_IN(ST_BAD_INPUT, source,
                       "the index is damaged: a cause lies outside the texts");
    data_index *index = (data_index *)calloc(1, sizeof *index);
    if (!index)
        return FAIL(ST_NO_MEMORY, "no memory for an index");
    index->n_samples = (int64_t)n_samples;
    index->n_images = (int64_t)n_images;
    index->images = body[0].data;
    index->samples = body[1].data;
    index->beginnings = begins ? body[2].data : NULL;
    index->texts = (const char *)body[3].data;
    index->text_bytes = texts;
    memcpy(index->contents.bytes, data + 24, sizeof index->contents.bytes);
    index->digest = index->contents;
    const status st = check_beginnings(index, source);
    if (st != ST_OK)
        index_free(&index);
    else
        *out = index;
    return st;
}

status index_load(const char *path, hash128 key, data_index **out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? FAIL_IN(ST_NO_INPUT, path, "there is no index yet")
                               : FAIL_IN(ST_IO, path, "cannot open: %s", strerror(errno));
    struct stat info;
    if (fstat(fd, &info) || info.st_size == 0) {
        close(fd);
        return FAIL_IN(ST_BAD_INPUT, path, "the index is empty");
    }
    size_t size = (size_t)info.st_size;
    void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return FAIL_IN(ST_IO, path, "cannot map %zu bytes: %s", size, strerror(errno));
    status st = index_parse(span_of(map, size), path, key, out);
    if (st != ST_OK) {
        munmap(map, size);
        return st;
    }
    (*out)->map = map;
    (*out)->map_bytes = size;
    return ST_OK;
}
