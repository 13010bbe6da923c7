/* SPDX-License-Identifier: Apache-2.0 */
/* text_cache.c: keeps the places of plain_text.h and the restart points of their files for
 * the next start (cache_file.h). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/program/log.h"
#include "prepd/dataset/adapters/plain_text.h"
#include "prepd/dataset/cache_file.h"

enum {
    VERSION = 5,       /* of these tables, and of what plain_text.c accepts */
    PLACE_NUMBERS = 4, /* offset; line; bytes and file; cause */
};

/* Names the file. False if nothing is to be kept. */
static bool name_cache(const texts *set, const conf *options, kept_name *out)
{
    hasher *hash;
    return kept_name_begin(options, VERSION, &hash) &&
           kept_name_end(options, "text", set->files, &hash, out);
}

static status save_texts(const texts *set, const kept_name *name)
{
    kept_points points = {0};
    char identity[HASH_TEXT];
    const size_t room = ((size_t)set->count * PLACE_NUMBERS + 1) * sizeof(int64_t);
    int64_t *places = malloc(room);
    status st = places ? kept_points_of(set->files, &points)
                       : FAIL(ST_NO_MEMORY, "no memory for the places of %" PRId64 " documents",
                              set->count);
    for (int64_t i = 0; st == ST_OK && i < set->count; i++) {
        const text_document *doc = &set->all[i];
        int64_t *to = places + i * PLACE_NUMBERS;
        kept_put_place(&doc->at, to);
        to[3] = doc->cause;
    }
    if (st == ST_OK) {
        hash_print(set->identity, identity);
        const st_meta words[] = {{"identity", identity}};
        const st_tensor tensors[] = {
            points.tensors[0],
            kept_column("places", DT_I64, set->count * PLACE_NUMBERS, places),
            points.tensors[1],
            kept_column("causes", DT_U8, (int64_t)set->causes.size, set->causes.bytes),
            points.tensors[2],
        };
        st = kept_save(name, tensors, sizeof tensors / sizeof *tensors, words, 1);
    }
    kept_points_done(&points);
    free(places);
    return st;
}

void text_cache_save(const texts *set, const conf *options)
{
    kept_name name;
    if (records_unpacked(set->files) >= KEPT_WORTH_BYTES && name_cache(set, options, &name) &&
        save_texts(set, &name) != ST_OK)
        log_info("the places of documents are not kept for the next start: %s", status_text());
}

/* --- loading --- */

static bool is_sound(const texts *set, const text_document *doc)
{
    return kept_place_is_sound(set->files, &doc->at) && doc->cause >= 0 &&
           (doc->cause == 0 || (size_t)doc->cause < set->causes.size);
}

static status take_places(texts *set, const st_file *file, const char *path)
{
    const uint8_t *words;
    int64_t count;
    TRY(kept_words(file, path, "places", PLACE_NUMBERS, -1, &words, &count));
    TRY(kept_texts(file, path, "causes", &set->causes));
    if (count == 0)
        return kept_unfit(path);
    set->all = calloc((size_t)count, sizeof *set->all);
    if (!set->all)
        return FAIL(ST_NO_MEMORY, "no memory for the places of %" PRId64 " documents", count);
    set->count = set->capacity = count;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = i * PLACE_NUMBERS;
        set->all[i] =
            (text_document){.at = kept_get_place(words, at), .cause = kept_number(words, at + 3)};
        if (!is_sound(set, &set->all[i]))
            return kept_unfit(path);
    }
    return ST_OK;
}

status text_cache_take(texts *set, const st_file *file, const char *path)
{
    TRY(kept_points_take(set->files, file, path));
    return take_places(set, file, path);
}

static status load_texts(texts *set, const kept_name *name)
{
    st_file file;
    TRY(kept_open(name, &file));
    status st = kept_identity(&file, name->path, &set->identity);
    if (st == ST_OK)
        st = text_cache_take(set, &file, name->path);
    st_close(&file);
    return st;
}

void text_cache_enter(const texts *set, const conf *options, cache_lock *out)
{
    kept_name name;
    if (records_bytes(set->files) >= KEPT_WORTH_PACKED && name_cache(set, options, &name))
        kept_enter(&name, out);
}

bool text_cache_load(texts *set, const conf *options)
{
    kept_name name;
    if (!name_cache(set, options, &name) || access(name.path, R_OK) != 0)
        return false;
    if (load_texts(set, &name) == ST_OK) {
        records_adopted(set->files);
        log_info("the places of documents are taken from the last start file=%s", name.path);
        return true;
    }
    log_info("the documents are read again, because what was kept cannot be used: %s",
             status_text());
    kept_points_forget(set->files);
    free(set->all);
    set->all = NULL;
    set->count = set->capacity = 0;
    text_pool_done(&set->causes);
    return false;
}
