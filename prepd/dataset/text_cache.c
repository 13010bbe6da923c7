/* text_cache.c: the places of text.h and the restart points of unpack.h as a safetensors file. Its
 * key says of which files, as they were, its sum that nothing changed in it since: a wrong place
 * would be another document, and nobody would notice. */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/safetensors.h"
#include "common/span.h"
#include "prepd/dataset/cache_folder.h"
#include "prepd/dataset/text.h"
#include "prepd/dataset/unpack_kind.h"

enum {
    VERSION = 3,           /* also of what is taken for a record */
    WORTH_BYTES = 8 << 20, /* unpacked; less is read at once */
    PLACE_WORDS = 4,       /* offset, line, bytes and file, cause */
    POINT_WORDS = 3,       /* unpacked, packed, bits and fresh */
    FILE_BITS = 32,
    FRESH = 8, /* above the bits */
};

typedef struct cache_name {
    char path[PATH_MAX];
    char key[HASH_TEXT];
} cache_name;

/* False where there is to be no cache. */
static bool name_cache(const texts *d, const conf *c, cache_name *out)
{
    hasher *h = NULL;
    char folder[PATH_MAX], name[HASH_TEXT];
    if (c->data_limit || hasher_new(&h) != ST_OK) /* a part of the files was read */
        return false;
    hasher_add_u64(h, VERSION);
    hasher_add(h, c->data_path, strlen(c->data_path) + 1);
    hasher_add(h, c->data_split, strlen(c->data_split) + 1);
    hash_print(hasher_value(h), name);
    records_stamp(d->files, h);
    hash_print(hasher_value(h), out->key);
    hasher_free(&h);
    return cache_folder(c, folder) == ST_OK &&
           snprintf(out->path, sizeof out->path, "%s/text-%s.safetensors", folder, name) <
               (int)sizeof out->path;
}

/* --- what is kept, as arrays --- */

typedef struct kept {
    int64_t *places;  /* [PLACE_WORDS * n] */
    int64_t *files;   /* [2 * n_files] restart points and unpacked bytes of each */
    int64_t *points;  /* [POINT_WORDS * n_points] of all files, one after the other */
    uint8_t *windows; /* [n_windows * UNPACK_WINDOW] of the points that are not fresh */
    int64_t n_points, n_windows;
} kept;

static void kept_done(kept *k)
{
    free(k->places);
    free(k->files);
    free(k->points);
    free(k->windows);
}

static status gather(const texts *d, kept *k)
{
    const int64_t n_files = records_count(d->files);
    int64_t point = 0, window = 0;
    for (int64_t f = 0; f < n_files; f++) {
        const unpack *u = records_unpack(d->files, f);
        for (int64_t i = 0; i < unpack_points(u); i++)
            k->n_windows += !unpack_restarts(u)[i].fresh;
        k->n_points += unpack_points(u);
    }
    k->places = malloc(((size_t)d->n * PLACE_WORDS + 1) * sizeof *k->places);
    k->files = malloc(((size_t)n_files * 2 + 1) * sizeof *k->files);
    k->points = malloc(((size_t)k->n_points * POINT_WORDS + 1) * sizeof *k->points);
    k->windows = malloc((size_t)k->n_windows * UNPACK_WINDOW + 1);
    if (!k->places || !k->files || !k->points || !k->windows)
        return FAIL(ST_NO_MEMORY, "no memory for the places of %" PRId64 " documents", d->n);
    for (int64_t i = 0; i < d->n; i++) {
        const text_document *x = &d->all[i];
        int64_t *to = k->places + i * PLACE_WORDS;
        to[0] = x->at.offset;
        to[1] = x->at.line;
        to[2] = (int64_t)x->at.file << FILE_BITS | (uint32_t)x->at.bytes;
        to[3] = x->cause;
    }
    for (int64_t f = 0; f < n_files; f++) {
        const unpack *u = records_unpack(d->files, f);
        k->files[2 * f] = unpack_points(u);
        k->files[2 * f + 1] = unpack_total(u);
        for (int64_t i = 0; i < unpack_points(u); i++, point++) {
            const unpack_restart *p = &unpack_restarts(u)[i];
            int64_t *to = k->points + point * POINT_WORDS;
            to[0] = p->unpacked;
            to[1] = p->packed;
            to[2] = p->bits | p->fresh << FRESH;
            if (!p->fresh)
                memcpy(k->windows + UNPACK_WINDOW * window++, p->window, UNPACK_WINDOW);
        }
    }
    return ST_OK;
}

static status sum_of(const st_tensor *tensors, size_t n, const char *identity, char out[HASH_TEXT])
{
    hasher *h = NULL;
    TRY(hasher_new(&h));
    hasher_add(h, identity, strlen(identity));
    for (size_t k = 0; k < n; k++) {
        hasher_add_u64(h, tensors[k].data.size);
        if (tensors[k].data.size)
            hasher_add(h, tensors[k].data.data, tensors[k].data.size);
    }
    hash_print(hasher_value(h), out);
    hasher_free(&h);
    return ST_OK;
}

static status save(const texts *d, const cache_name *name)
{
    kept k = {0};
    char identity[HASH_TEXT], sum[HASH_TEXT] = "", aside[PATH_MAX + 32];
    status st = gather(d, &k);
    hash_print(d->identity, identity);
    /* A name of our own: two daemons may start at once. */
    snprintf(aside, sizeof aside, "%s.%d", name->path, (int)getpid());
    const st_meta meta[] = {{"key", name->key}, {"identity", identity}, {"sum", sum}};
#define TENSOR(tensor_name, type, count, bytes)                                                    \
    {                                                                                              \
        .name = (tensor_name), .dtype = (type), .n_dims = 1, .shape = {(int64_t)(count)},          \
        .data = span_of((bytes), (size_t)(count)*st_dtype_size(type))                              \
    }
    const st_tensor tensors[] = {
        TENSOR("files", DT_I64, 2 * records_count(d->files), k.files),
        TENSOR("places", DT_I64, d->n * PLACE_WORDS, k.places),
        TENSOR("points", DT_I64, k.n_points * POINT_WORDS, k.points),
        TENSOR("causes", DT_U8, d->causes.size, d->causes.bytes),
        TENSOR("windows", DT_U8, k.n_windows * UNPACK_WINDOW, k.windows),
    };
#undef TENSOR
    if (st == ST_OK)
        st = sum_of(tensors, sizeof tensors / sizeof *tensors, identity, sum);
    if (st == ST_OK)
        st = st_write(aside, tensors, sizeof tensors / sizeof *tensors, meta,
                      sizeof meta / sizeof *meta);
    if (st == ST_OK && rename(aside, name->path) != 0) {
        st = FAIL_IN(ST_CANT_CREATE, name->path, "%s", strerror(errno));
        unlink(aside);
    }
    kept_done(&k);
    return st;
}

void text_cache_save(const texts *d, const conf *c)
{
    cache_name name;
    if (records_unpacked(d->files) >= WORTH_BYTES && name_cache(d, c, &name) &&
        save(d, &name) != ST_OK)
        log_info("places of documents are not kept for the next start: %s", status_text());
}

/* --- and back --- */

static int64_t word(const uint8_t *words, int64_t i)
{
    return (int64_t)load_u64(words + i * (int64_t)sizeof(int64_t));
}

static status array_of(const st_file *f, const char *path, const char *name, int64_t unit,
                       int64_t want, const uint8_t **out, int64_t *out_n)
{
    const st_tensor *t;
    TRY(st_want(f, name, DT_I64, 1, path, &t));
    if (t->shape[0] % unit || (want >= 0 && t->shape[0] != want * unit))
        return FAIL_IN(ST_BAD_INPUT, path, "%s has %" PRId64 " entries", name, t->shape[0]);
    *out = t->data.data;
    *out_n = t->shape[0] / unit;
    return ST_OK;
}

/* Restart points of one file; windows: those behind are of the next. */
static status adopt(unpack *u, const uint8_t *words, int64_t n, int64_t total,
                    const uint8_t **windows, int64_t *inout_windows)
{
    unpack_restart *p = calloc((size_t)n + 1, sizeof *p);
    status st = ST_OK;
    if (!p)
        return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " restart points", n);
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        const int64_t flags = word(words, i * POINT_WORDS + 2);
        p[i] = (unpack_restart){.unpacked = word(words, i * POINT_WORDS),
                                .packed = word(words, i * POINT_WORDS + 1),
                                .bits = (int)(flags & ((1 << FRESH) - 1)),
                                .fresh = flags >> FRESH & 1};
        if (p[i].fresh)
            continue;
        if ((*inout_windows)-- <= 0)
            st = FAIL(ST_BAD_INPUT, "fewer windows than restart points");
        else
            p[i].window = (uint8_t *)(uintptr_t)*windows; /* only read */
        *windows += st == ST_OK ? UNPACK_WINDOW : 0;
    }
    if (st == ST_OK)
        st = unpack_adopt(u, p, n, total);
    free(p);
    return st;
}

static status take_points(texts *d, const st_file *f, const char *path)
{
    const uint8_t *files, *points;
    const st_tensor *t;
    int64_t n_files, n_points;
    TRY(array_of(f, path, "files", 2, records_count(d->files), &files, &n_files));
    TRY(array_of(f, path, "points", POINT_WORDS, -1, &points, &n_points));
    TRY(st_want(f, "windows", DT_U8, 1, path, &t));
    const uint8_t *windows = t->data.data;
    int64_t left = t->shape[0] / UNPACK_WINDOW;
    for (int64_t k = 0; k < n_files; k++) {
        const int64_t n = word(files, 2 * k);
        if (n < 1 || n > n_points)
            return FAIL_IN(ST_BAD_INPUT, path, "a file of %" PRId64 " restart points", n);
        TRY(adopt(records_unpack(d->files, k), points, n, word(files, 2 * k + 1), &windows, &left));
        points += n * POINT_WORDS * (int64_t)sizeof(int64_t);
        n_points -= n;
    }
    return ST_OK;
}

static bool is_sound(const texts *d, const text_document *x, const text_pool *causes)
{
    if (x->at.file < 0 || x->at.file >= records_count(d->files) || x->at.line < 1 ||
        x->at.bytes < 0 || x->at.bytes > RECORD_BYTES || x->at.offset < 0 || x->cause < 0 ||
        (x->cause && (size_t)x->cause >= causes->size))
        return false;
    return x->at.offset <= unpack_total(records_unpack(d->files, x->at.file)) - x->at.bytes;
}

static status take_places(texts *d, const st_file *f, const char *path)
{
    const uint8_t *words;
    const st_tensor *t;
    int64_t n;
    TRY(array_of(f, path, "places", PLACE_WORDS, -1, &words, &n));
    TRY(st_want(f, "causes", DT_U8, 1, path, &t));
    if (n == 0 || (t->data.size && t->data.data[t->data.size - 1] != 0))
        return FAIL_IN(ST_BAD_INPUT, path, "its entries do not fit each other");
    d->all = calloc((size_t)n, sizeof *d->all);
    d->causes.bytes = malloc(t->data.size + 1);
    if (!d->all || !d->causes.bytes)
        return FAIL(ST_NO_MEMORY, "no memory for the places of %" PRId64 " documents", n);
    d->n = d->capacity = n;
    memcpy(d->causes.bytes, t->data.data, t->data.size);
    d->causes.size = d->causes.capacity = t->data.size;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = i * PLACE_WORDS, which = word(words, at + 2);
        d->all[i] = (text_document){.at = {.offset = word(words, at),
                                           .line = word(words, at + 1),
                                           .bytes = (int32_t)(uint32_t)which,
                                           .file = (int32_t)(which >> FILE_BITS)},
                                    .cause = word(words, at + 3)};
        if (!is_sound(d, &d->all[i], &d->causes))
            return FAIL_IN(ST_BAD_INPUT, path, "its entries do not fit each other");
    }
    return ST_OK;
}

status text_cache_take(texts *d, const st_file *f, const char *path)
{
    TRY(take_points(d, f, path));
    return take_places(d, f, path);
}

/* The arrays are what was written, in the order they were summed in. */
static status check_sum(const st_file *f, const char *path, const char *identity)
{
    static const char *const names[] = {"files", "places", "points", "causes", "windows"};
    enum { N = sizeof names / sizeof *names };
    const char *wanted = st_meta_find(f, "sum");
    st_tensor tensors[N];
    char sum[HASH_TEXT];
    for (size_t k = 0; k < N; k++) {
        const st_tensor *t = st_find(f, names[k]);
        if (!t)
            return FAIL_IN(ST_BAD_INPUT, path, "%s is missing", names[k]);
        tensors[k] = *t;
    }
    TRY(sum_of(tensors, N, identity, sum));
    if (!wanted || strcmp(wanted, sum) != 0)
        return FAIL_IN(ST_BAD_INPUT, path, "it was changed since");
    return ST_OK;
}

static status load(texts *d, const cache_name *name)
{
    st_file f;
    status st = ST_OK;
    TRY(st_open(name->path, &f));
    const char *key = st_meta_find(&f, "key"), *identity = st_meta_find(&f, "identity");
    if (!key || strcmp(key, name->key) != 0 || !identity || !hash_parse(identity, &d->identity)) {
        st = FAIL_IN(ST_NO_INPUT, name->path, "of other files");
        goto done;
    }
    TRY_OR(done, check_sum(&f, name->path, identity));
    st = text_cache_take(d, &f, name->path);
done:
    st_close(&f);
    return st;
}

bool text_cache_load(texts *d, const conf *c)
{
    cache_name name;
    if (!name_cache(d, c, &name) || access(name.path, R_OK) != 0)
        return false;
    if (load(d, &name) == ST_OK) {
        records_adopted(d->files);
        log_info("places of documents are those of the last start file=%s", name.path);
        return true;
    }
    log_info("documents are read again: %s", status_text());
    for (int64_t k = 0; k < records_count(d->files); k++)
        unpack_forget(records_unpack(d->files, k));
    free(d->all);
    d->all = NULL;
    d->n = d->capacity = 0;
    text_pool_done(&d->causes);
    return false;
}
