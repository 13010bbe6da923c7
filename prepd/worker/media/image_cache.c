/* SPDX-License-Identifier: Apache-2.0 */
/* image_cache.c: the cache of pictures, a hash table of places and a ring of entries in one file.
 *
 * The file; numbers are little-endian:
 *
 *   offset  bytes
 *        0      4  magic "TSPC"
 *        4      4  version
 *        8      8  bytes of the ring
 *       16      8  buckets
 *       24      8  head: all bytes ever reserved in the ring, a segment at a time
 *     4096     64  for each bucket, four ways: tag u64 (of the key) and place u64 + 1 (0 is free)
 *                  then the ring; place p lies at p modulo the size of the ring
 *
 *   An entry: magic u32, u32 zero, bytes of the patches u64, key [16], XXH3-128 of key and patches
 *   [16], the patches. */
#include "prepd/worker/media/image_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/program/log.h"

enum {
    CACHE_MAGIC = 0x43505354,
    ENTRY_MAGIC = 0x45505354,
    CACHE_VERSION = 1,
    /* Raise this when our own code makes other patches of the same file: by orientation, colours,
     * resampling, the order of patches. A change of a library shows in the fingerprint. */
    PIXELS_VERSION = 2, /* 2: damaged files are not kept */
    HEADER_BYTES = 4096,
    HEAD_AT = 24,
    WAYS = 4,
    BUCKET_BYTES = WAYS * 16,
    ENTRY_BYTES = 48,
    BYTES_PER_BUCKET = 1 << 19, /* bytes of ring per bucket: with pictures of 0.8 MB most ways stay
                                 * free */
    SEGMENT_BYTES = 1 << 23,    /* reserved at once, so that two writers rarely take the same place;
                                 * an eighth of a small ring */
};

struct image_cache {
    int fd;
    hash128 decoder;        /* fingerprint */
    uint64_t ring, buckets; /* bytes of the ring, number of buckets */
    uint64_t next, left;    /* place and bytes of what is left of our segment */
};

static bool read_at(const image_cache *cache, uint64_t offset, void *to, size_t size)
{
    ssize_t got;
    while ((got = pread(cache->fd, to, size, (off_t)offset)) < 0 && errno == EINTR)
        ;
    return got == (ssize_t)size;
}

static bool write_at(const image_cache *cache, uint64_t offset, const void *from, size_t bytes)
{
    ssize_t put;
    while ((put = pwrite(cache->fd, from, bytes, (off_t)offset)) < 0 && errno == EINTR)
        ;
    if (put >= 0 && put < (ssize_t)bytes)
        errno = ENOSPC; /* what writing the next byte would say */
    return put == (ssize_t)bytes;
}

static uint64_t ring_at(const image_cache *cache, uint64_t place)
{
    return HEADER_BYTES + cache->buckets * BUCKET_BYTES + place % cache->ring;
}

/* --- the file --- */

static void make_header(const image_cache *cache, uint8_t out[HEADER_BYTES])
{
    memset(out, 0, HEADER_BYTES);
    store_u32(out, CACHE_MAGIC);
    store_u32(out + 4, CACHE_VERSION);
    store_u64(out + 8, cache->ring);
    store_u64(out + 16, cache->buckets);
}

/* True if the file is a cache of this form and size. */
static bool is_ours(const image_cache *cache)
{
    uint8_t want[HEADER_BYTES], found[HEAD_AT];
    struct stat info;
    make_header(cache, want);
    return read_at(cache, 0, found, sizeof found) && memcmp(found, want, sizeof found) == 0 &&
           fstat(cache->fd, &info) == 0 &&
           (uint64_t)info.st_size >= ring_at(cache, 0) + cache->ring;
}

/* Makes a new file. Workers that have the old one open keep it. */
static status make_file(image_cache *cache, const char *path)
{
    uint8_t header[HEADER_BYTES];
    make_header(cache, header);
    if (unlink(path) != 0 && errno != ENOENT)
        return FAIL_IN(ST_CANT_CREATE, path, "the old cache cannot be removed: %s",
                       strerror(errno));
    cache->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (cache->fd < 0)
        return FAIL_IN(ST_CANT_CREATE, path, "the cache cannot be created: %s", strerror(errno));
    if (ftruncate(cache->fd, (off_t)(ring_at(cache, 0) + cache->ring)) != 0 ||
        !write_at(cache, 0, header, sizeof header))
        return FAIL_IN(errno == ENOSPC || errno == EDQUOT ? ST_IO : ST_CANT_CREATE, path,
                       "the cache cannot be written: %s", strerror(errno));
    return ST_OK;
}

/* Opens the file, or makes it; a lock lets one worker at a time do so. */
static status open_locked(image_cache *cache, const char *folder)
{
    char path[PATH_MAX], lock[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/images.cache", folder) >= (int)sizeof path ||
        snprintf(lock, sizeof lock, "%s/images.lock", folder) >= (int)sizeof lock)
        return FAIL(ST_CONFIG, "the path of cache.folder is longer than %d bytes", PATH_MAX - 16);
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return FAIL_IN(ST_CANT_CREATE, folder, "cache.folder cannot be created: %s",
                       strerror(errno));
    const int locked = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (locked < 0 || flock(locked, LOCK_EX) != 0) {
        const int why = errno;
        if (locked >= 0)
            close(locked);
        return FAIL_IN(ST_CANT_CREATE, lock, "cache.folder cannot be used: %s", strerror(why));
    }
    status st = ST_OK;
    cache->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (cache->fd < 0 || !is_ours(cache)) {
        if (cache->fd >= 0)
            close(cache->fd);
        cache->fd = -1;
        st = make_file(cache, path);
    }
    close(locked);
    return st;
}

status image_cache_open(const conf *options, hash128 decoder, image_cache **out)
{
    *out = NULL;
    if (!options->cache_folder[0])
        return ST_OK;
    image_cache *cache = (image_cache *)calloc(1, sizeof *cache);
    if (!cache)
        return FAIL(ST_NO_MEMORY, "no memory for a cache");
    cache->fd = -1;
    cache->decoder = decoder;
    cache->ring = (uint64_t)options->cache_bytes;
    cache->buckets = cache->ring / BYTES_PER_BUCKET + 1;
    const status st = open_locked(cache, options->cache_folder);
    if (st != ST_OK) {
        image_cache_close(&cache);
        if (st != ST_IO)
            return st;
        log_warn("pictures are not cached: %s", status_text());
        return ST_OK;
    }
    *out = cache;
    return ST_OK;
}

void image_cache_close(image_cache **held)
{
    if (!held || !*held)
        return;
    if ((*held)->fd >= 0)
        close((*held)->fd);
    free(*held);
    *held = NULL;
}

/* --- entries --- */

hash128 image_cache_key(const image_cache *cache, span file, int64_t height, int64_t width,
                        fit_grid grid, const conf *options)
{
    uint8_t name[96] = {0};
    const hash128 content = hash_bytes(file.data, file.size);
    memcpy(name, content.bytes, 16);
    memcpy(name + 16, cache->decoder.bytes, 16);
    store_u64(name + 32, file.size);
    store_u32(name + 40, (uint32_t)grid.rows);
    store_u32(name + 44, (uint32_t)grid.columns);
    store_u64(name + 48, (uint64_t)options->image_resampler);
    store_u64(name + 56, (uint64_t)options->image_input_pixels);
    store_u64(name + 64, (uint64_t)options->image_decoder);
    store_u64(name + 72, (uint64_t)height);
    store_u64(name + 80, (uint64_t)width);
    store_u32(name + 88, PIXELS_VERSION);
    store_u32(name + 92, (uint32_t)options->image_transparency);
    return hash_bytes(name, sizeof name);
}

static uint64_t tag_of(hash128 key)
{
    return load_u64(key.bytes + 8);
}

static uint64_t bucket_at(const image_cache *cache, hash128 key)
{
    return HEADER_BYTES + load_u64(key.bytes) % cache->buckets * BUCKET_BYTES;
}

static hash128 hash_patches(hash128 key, const uint8_t *patches, size_t bytes)
{
    return hash_chain(key, hash_bytes(patches, bytes));
}

static bool get_at(const image_cache *cache, uint64_t place, hash128 key, uint8_t *patches,
                   size_t bytes)
{
    uint8_t head[ENTRY_BYTES];
    const struct iovec both[] = {{head, sizeof head}, {patches, bytes}};
    const uint64_t inside = place % cache->ring;
    ssize_t got;
    if (inside + ENTRY_BYTES + bytes > cache->ring)
        return false;
    while ((got = preadv(cache->fd, both, 2, (off_t)ring_at(cache, place))) < 0 && errno == EINTR)
        ;
    if (got != (ssize_t)(sizeof head + bytes) || load_u32(head) != ENTRY_MAGIC ||
        load_u64(head + 8) != bytes || memcmp(head + 16, key.bytes, sizeof key.bytes) != 0)
        return false;
    const hash128 check = hash_patches(key, patches, bytes);
    return memcmp(head + 32, check.bytes, sizeof check.bytes) == 0;
}

bool image_cache_get(image_cache *cache, hash128 key, uint8_t *patches, size_t bytes)
{
    uint8_t bucket[BUCKET_BYTES];
    if (!read_at(cache, bucket_at(cache, key), bucket, sizeof bucket))
        return false;
    for (int k = 0; k < WAYS; k++) {
        const uint64_t place = load_u64(bucket + 16 * k + 8);
        if (place && load_u64(bucket + 16 * k) == tag_of(key) &&
            get_at(cache, place - 1, key, patches, bytes))
            return true;
    }
    return false;
}

/* Reserves `count` contiguous bytes of the ring; false if the ring is smaller. */
static bool reserve_place(image_cache *cache, uint64_t count, uint64_t *out)
{
    uint8_t number[8];
    if (count > cache->ring)
        return false;
    if (count > cache->left) {
        const uint64_t segment = cache->ring / 8 < SEGMENT_BYTES ? cache->ring / 8 : SEGMENT_BYTES;
        const uint64_t take = count > segment ? count : segment;
        if (!read_at(cache, HEAD_AT, number, sizeof number))
            return false;
        uint64_t head = load_u64(number);
        if (head > (uint64_t)1 << 62) /* the header is damaged */
            head = 0;
        if (head % cache->ring + take > cache->ring) /* an entry does not wrap round the end */
            head += cache->ring - head % cache->ring;
        store_u64(number, head + take);
        if (!write_at(cache, HEAD_AT, number, sizeof number))
            return false;
        cache->next = head;
        cache->left = take;
    }
    *out = cache->next;
    cache->next += count;
    cache->left -= count;
    return true;
}

/* Enters a place into the bucket of its key: in the way that has the same key, a free way, or the
 * way with the oldest place. */
static void name_place(const image_cache *cache, hash128 key, uint64_t place)
{
    uint8_t bucket[BUCKET_BYTES], way[16];
    int best = 0;
    if (!read_at(cache, bucket_at(cache, key), bucket, sizeof bucket))
        return;
    for (int k = 0; k < WAYS; k++) {
        if (load_u64(bucket + 16 * k) == tag_of(key)) {
            best = k;
            break;
        }
        if (load_u64(bucket + 16 * k + 8) < load_u64(bucket + 16 * best + 8))
            best = k;
    }
    store_u64(way, tag_of(key));
    store_u64(way + 8, place + 1);
    (void)write_at(cache, bucket_at(cache, key) + 16 * (uint64_t)best, way, sizeof way);
}

void image_cache_put(image_cache *cache, hash128 key, const uint8_t *patches, size_t bytes)
{
    uint8_t head[ENTRY_BYTES] = {0};
    uint64_t place;
    if (!reserve_place(cache, ENTRY_BYTES + bytes, &place))
        return;
    const hash128 check = hash_patches(key, patches, bytes);
    store_u32(head, ENTRY_MAGIC);
    store_u64(head + 8, bytes);
    memcpy(head + 16, key.bytes, sizeof key.bytes);
    memcpy(head + 32, check.bytes, sizeof check.bytes);
    if (write_at(cache, ring_at(cache, place) + ENTRY_BYTES, patches, bytes) &&
        write_at(cache, ring_at(cache, place), head, sizeof head))
        name_place(cache, key, place);
}
