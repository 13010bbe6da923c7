/* plain_text_cache.c: the places of plain_text.h, kept with the restart points of their files. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/program/log.h"
#include "prepd/dataset/kept.h"
#include "prepd/dataset/plain_text.h"

enum {
    VERSION = 4,       /* also of what is taken for a record */
    PLACE_NUMBERS = 4, /* offset, line, bytes and file, cause */
    FILE_BITS = 32,
};

/* False where there is to be no cache. */
static bool name_cache(const texts *d, const conf *c, kept_name *out)
{
    hasher *h;
    return kept_name_begin(c, VERSION, &h) && kept_name_end(c, "text", d->files, &h, out);
}

static status save_texts(const texts *d, const kept_name *name)
{
    kept_points points = {0};
    char identity[HASH_TEXT];
    const size_t room = ((size_t)d->n * PLACE_NUMBERS + 1) * sizeof(int64_t);
    int64_t *places = malloc(room);
    status st = places
                    ? kept_points_of(d->files, &points)
                    : FAIL(ST_NO_MEMORY, "no memory for the places of %" PRId64 " documents", d->n);
    for (int64_t i = 0; st == ST_OK && i < d->n; i++) {
        const text_document *x = &d->all[i];
        int64_t *to = places + i * PLACE_NUMBERS;
        to[0] = x->at.offset;
        to[1] = x->at.line;
        to[2] = (int64_t)x->at.file << FILE_BITS | (uint32_t)x->at.bytes;
        to[3] = x->cause;
    }
    if (st == ST_OK) {
        hash_print(d->identity, identity);
        const st_meta words[] = {{"identity", identity}};
        const st_tensor tensors[] = {
            points.tensors[0],
            kept_column("places", DT_I64, d->n * PLACE_NUMBERS, places),
            points.tensors[1],
            kept_column("causes", DT_U8, (int64_t)d->causes.size, d->causes.bytes),
            points.tensors[2],
        };
        st = kept_save(name, tensors, sizeof tensors / sizeof *tensors, words, 1);
    }
    kept_points_done(&points);
    free(places);
    return st;
}

void text_cache_save(const texts *d, const conf *c)
{
    kept_name name;
    if (records_unpacked(d->files) >= KEPT_WORTH_BYTES && name_cache(d, c, &name) &&
        save_texts(d, &name) != ST_OK)
        log_info("places of documents are not kept for the next start: %s", status_text());
}

/* --- and back --- */

static bool is_sound(const texts *d, const text_document *x)
{
    return kept_place_is_sound(d->files, &x->at) && x->cause >= 0 &&
           (x->cause == 0 || (size_t)x->cause < d->causes.size);
}

static status take_places(texts *d, const st_file *f, const char *path)
{
    const uint8_t *words;
    const st_tensor *t;
    int64_t n;
    TRY(kept_words(f, path, "places", PLACE_NUMBERS, -1, &words, &n));
    TRY(st_want(f, "causes", DT_U8, 1, path, &t));
    if (n == 0 || (t->data.size && t->data.data[t->data.size - 1] != 0))
        return FAIL_IN(ST_BAD_INPUT, path, "its entries do not fit each other");
    d->all = calloc((size_t)n, sizeof *d->all);
    d->causes.bytes = malloc(t->data.size + 1);
    if (!d->all || !d->causes.bytes)
        return FAIL(ST_NO_MEMORY, "no memory for the places of %" PRId64 " documents", n);
    d->n = d->capacity = n;
    if (t->data.size)
        memcpy(d->causes.bytes, t->data.data, t->data.size);
    d->causes.size = d->causes.capacity = t->data.size;
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = i * PLACE_NUMBERS, which = kept_number(words, at + 2);
        d->all[i] = (text_document){.at = {.offset = kept_number(words, at),
                                           .line = kept_number(words, at + 1),
                                           .bytes = (int32_t)(uint32_t)which,
                                           .file = (int32_t)(which >> FILE_BITS)},
                                    .cause = kept_number(words, at + 3)};
        if (!is_sound(d, &d->all[i]))
            return FAIL_IN(ST_BAD_INPUT, path, "its entries do not fit each other");
    }
    return ST_OK;
}

status text_cache_take(texts *d, const st_file *f, const char *path)
{
    TRY(kept_points_take(d->files, f, path));
    return take_places(d, f, path);
}

static status load_texts(texts *d, const kept_name *name)
{
    st_file f;
    TRY(kept_open(name, &f));
    const char *identity = st_meta_find(&f, "identity");
    status st = identity && hash_parse(identity, &d->identity)
                    ? text_cache_take(d, &f, name->path)
                    : FAIL_IN(ST_BAD_INPUT, name->path, "it names no identity");
    st_close(&f);
    return st;
}

void text_cache_enter(const texts *d, const conf *c, cache_lock *out)
{
    kept_name name;
    if (records_bytes(d->files) >= KEPT_WORTH_PACKED && name_cache(d, c, &name))
        kept_enter(&name, out);
}

bool text_cache_load(texts *d, const conf *c)
{
    kept_name name;
    if (!name_cache(d, c, &name) || access(name.path, R_OK) != 0)
        return false;
    if (load_texts(d, &name) == ST_OK) {
        records_adopted(d->files);
        log_info("places of documents are those of the last start file=%s", name.path);
        return true;
    }
    log_info("documents are read again: %s", status_text());
    kept_points_forget(d->files);
    free(d->all);
    d->all = NULL;
    d->n = d->capacity = 0;
    text_pool_done(&d->causes);
    return false;
}
