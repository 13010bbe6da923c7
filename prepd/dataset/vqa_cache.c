/* vqa_cache.c: the tables of vqa.h, kept as a tensor per column. */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/program/log.h"
#include "prepd/dataset/kept.h"
#include "prepd/dataset/vqa.h"

enum { VERSION = 4 };

/* Columns of a question. */
static const struct {
    const char *name;
    st_dtype dtype;
    size_t at;
} columns[] = {
    {"id", DT_I64, offsetof(vqa_question, id)},
    {"image_id", DT_I64, offsetof(vqa_question, image_id)},
    {"text", DT_I64, offsetof(vqa_question, text)},
    {"answer", DT_I64, offsetof(vqa_question, answer)},
    {"cause", DT_I64, offsetof(vqa_question, cause)},
    {"text_bytes", DT_I32, offsetof(vqa_question, text_bytes)},
    {"answer_bytes", DT_I32, offsetof(vqa_question, answer_bytes)},
    {"image", DT_I32, offsetof(vqa_question, image)},
};
enum { COLUMNS = sizeof columns / sizeof *columns, TENSORS = COLUMNS + 4 };

static status add_file(hasher *h, const char *path, int64_t *inout_bytes)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return FAIL_IN(ST_NO_INPUT, path, "%s", strerror(errno));
    hasher_add_text(h, path);
    hasher_add_u64(h, (uint64_t)info.st_size);
    hasher_add_u64(h, (uint64_t)info.st_mtim.tv_sec);
    hasher_add_u64(h, (uint64_t)info.st_mtim.tv_nsec);
    *inout_bytes += info.st_size;
    return ST_OK;
}

/* Which data set it is, and how it is read: sources of a mixture share a folder and have the same
 * options. */
static void add_name(hasher *h, const vqa *d, const conf *c)
{
    hasher_add_u64(h, VERSION);
    hasher_add_text(h, d->paths.questions);
    hasher_add_text(h, d->paths.annotations);
    hasher_add_text(h, d->paths.root);
    hasher_add_text(h, d->paths.image_folder);
    hasher_add_text(h, d->paths.subtype);
    hasher_add_text(h, c->data_split);
    hasher_add_text(h, c->data_suffix);
    hasher_add_u64(h, (uint64_t)c->data_group);
    hasher_add_u64(h, (uint64_t)c->data_limit);
    hasher_add_u64(h, (uint64_t)c->data_answer);
    hasher_add_u64(h, c->data_answer == ANSWER_DRAWN ? (uint64_t)c->training_seed : 0);
}

static status hash_key(const vqa *d, const conf *c, int64_t *out_bytes, kept_name *out, hasher *h)
{
    char zip[2 * VQA_PATH_MAX];
    int64_t ignored = 0;
    *out_bytes = 0;
    add_name(h, d, c);
    const hash128 name = hasher_value(h);
    TRY(add_file(h, d->paths.questions, out_bytes));
    TRY(add_file(h, d->paths.annotations, out_bytes));
    if (d->paths.picture_zip[0]) {
        snprintf(zip, sizeof zip, "%s/%s", d->paths.root, d->paths.picture_zip);
        TRY(add_file(h, zip, &ignored));
    }
    if (*out_bytes < KEPT_WORTH_BYTES)
        return ST_OK;
    return kept_name_make(c, "vqav2", name, hasher_value(h), out);
}

/* False where there is to be no cache. d->paths must have its pictures. */
static bool name_cache(const vqa *d, const conf *c, kept_name *out)
{
    hasher *h = NULL;
    int64_t bytes = 0;
    if (d->paths.images_json[0] || c->data_references)
        return false;
    status st = hasher_new(&h);
    if (st == ST_OK)
        st = hash_key(d, c, &bytes, out, h);
    hasher_free(&h);
    if (st != ST_OK)
        log_info("questions are not kept for the next start: %s", status_text());
    return st == ST_OK && bytes >= KEPT_WORTH_BYTES;
}

static status pack_columns(const vqa *d, st_tensor tensors[TENSORS], void *room[COLUMNS],
                           int *out_n)
{
    const size_t rows = (size_t)d->n_questions;
    int n = 0;
    tensors[n++] = kept_column("image_paths", DT_I64, d->n_images, d->image_paths);
    if (d->places) {
        tensors[n++] = kept_column("places", DT_I64, 2 * d->n_places, d->places);
        tensors[n++] = kept_column("place_at", DT_I64, d->n_images, d->place_at);
    }
    for (size_t k = 0; k < COLUMNS; k++) {
        size_t size = st_dtype_size(columns[k].dtype);
        char *column = room[k] = malloc(rows * size + 1);
        if (!column)
            return FAIL(ST_NO_MEMORY, "no memory for a column of %zu questions", rows);
        for (size_t i = 0; i < rows; i++)
            memcpy(column + i * size, (const char *)&d->questions[i] + columns[k].at, size);
        tensors[n++] = kept_column(columns[k].name, columns[k].dtype, (int64_t)rows, column);
    }
    tensors[n++] = kept_column("texts", DT_U8, (int64_t)d->texts.size, d->texts.bytes);
    *out_n = n;
    return ST_OK;
}

static status save_questions(const vqa *d, const kept_name *name)
{
    st_tensor tensors[TENSORS];
    void *room[COLUMNS] = {NULL};
    char identity[HASH_TEXT], suffix[32];
    int n = 0;
    hash_print(d->identity, identity);
    snprintf(suffix, sizeof suffix, "%" PRId64, d->suffix_at);
    const st_meta words[] = {{"identity", identity}, {"suffix_at", suffix}};
    status st = pack_columns(d, tensors, room, &n);
    if (st == ST_OK)
        st = kept_save(name, tensors, (size_t)n, words, sizeof words / sizeof *words);
    for (size_t k = 0; k < COLUMNS; k++)
        free(room[k]);
    return st;
}

void vqa_cache_save(const vqa *d, const conf *c)
{
    kept_name name;
    if (name_cache(d, c, &name) && save_questions(d, &name) != ST_OK)
        log_info("questions are not kept for the next start: %s", status_text());
}

static status read_sized_column(const st_file *f, const char *path, const char *name,
                                st_dtype dtype, int64_t want, void **out, int64_t *out_n)
{
    const st_tensor *t;
    TRY(st_want(f, name, dtype, 1, path, &t));
    if (want >= 0 && t->shape[0] != want)
        return FAIL_IN(ST_BAD_INPUT, path, "%s has %" PRId64 " entries, expected %" PRId64, name,
                       t->shape[0], want);
    *out = malloc(t->data.size + 1);
    if (!*out)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of %s", t->data.size, name);
    if (t->data.size)
        memcpy(*out, t->data.data, t->data.size);
    if (out_n)
        *out_n = t->shape[0];
    return ST_OK;
}

static status take_questions(vqa *d, const st_file *f, const char *path)
{
    const st_tensor *t;
    TRY(st_want(f, columns[0].name, columns[0].dtype, 1, path, &t));
    d->n_questions = t->shape[0];
    d->questions = calloc((size_t)d->n_questions + 1, sizeof *d->questions);
    if (!d->questions)
        return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " questions", d->n_questions);
    for (size_t k = 0; k < COLUMNS; k++) {
        size_t size = st_dtype_size(columns[k].dtype);
        TRY(st_want(f, columns[k].name, columns[k].dtype, 1, path, &t));
        if (t->shape[0] != d->n_questions)
            return FAIL_IN(ST_BAD_INPUT, path, "%s has another length", columns[k].name);
        for (int64_t i = 0; i < d->n_questions; i++)
            memcpy((char *)&d->questions[i] + columns[k].at, t->data.data + (size_t)i * size, size);
    }
    return ST_OK;
}

/* A terminated text of n bytes, or of any length with n -1, lies inside the pool. */
static bool is_text(const text_pool *p, int64_t at, int64_t n)
{
    if (at < 0 || (size_t)at >= p->size || n >= (int64_t)p->size - at)
        return false;
    return n < 0 ? memchr(p->bytes + at, 0, p->size - (size_t)at) != NULL : p->bytes[at + n] == 0;
}

static bool is_consistent(const vqa *d)
{
    bool ok = d->n_questions > 0 && d->texts.size > 0 && d->texts.bytes[0] == 0 &&
              d->n_images <= INT32_MAX && is_text(&d->texts, d->suffix_at, -1) &&
              (d->paths.picture_zip[0] != 0) == (d->places != NULL);
    for (int64_t j = 0; ok && j < d->n_images; j++)
        ok = is_text(&d->texts, d->image_paths[j], -1) &&
             (!d->places || (d->place_at[j] >= 0 && d->place_at[j] < d->n_places));
    for (int64_t i = 0; ok && i < d->n_questions; i++) {
        const vqa_question *q = &d->questions[i];
        ok = is_text(&d->texts, q->text, q->text_bytes) && q->text_bytes >= 0 &&
             is_text(&d->texts, q->answer, q->answer_bytes) && q->answer_bytes >= 0 &&
             is_text(&d->texts, q->cause, -1) && q->image >= -1 && q->image < d->n_images &&
             (q->cause || q->image >= 0);
    }
    return ok;
}

status vqa_cache_take(vqa *d, const st_file *f, const char *path)
{
    int64_t n, n_places = 0;
    const char *suffix = st_meta_find(f, "suffix_at");
    if (!suffix)
        return FAIL_IN(ST_BAD_INPUT, path, "it names no suffix");
    d->suffix_at = strtoll(suffix, NULL, 10);
    TRY(read_sized_column(f, path, "texts", DT_U8, -1, (void **)&d->texts.bytes, &n));
    d->texts.size = d->texts.capacity = (size_t)n;
    TRY(read_sized_column(f, path, "image_paths", DT_I64, -1, (void **)&d->image_paths,
                          &d->n_images));
    if (st_find(f, "places")) {
        TRY(read_sized_column(f, path, "places", DT_I64, -1, (void **)&d->places, &n_places));
        d->n_places = n_places / 2;
        TRY(read_sized_column(f, path, "place_at", DT_I64, d->n_images, (void **)&d->place_at,
                              NULL));
    }
    TRY(take_questions(d, f, path));
    return is_consistent(d) ? ST_OK
                            : FAIL_IN(ST_BAD_INPUT, path, "its entries do not fit each other");
}

static status load_questions(vqa *d, const kept_name *name, hash128 *out_identity)
{
    st_file f;
    TRY(kept_open(name, &f));
    const char *identity = st_meta_find(&f, "identity");
    const status st = identity && hash_parse(identity, out_identity)
                          ? vqa_cache_take(d, &f, name->path)
                          : FAIL_IN(ST_BAD_INPUT, name->path, "it names no identity");
    st_close(&f);
    return st;
}

void vqa_cache_enter(vqa *d, const conf *c, cache_lock *out)
{
    kept_name name;
    if (!d->paths.images_json[0] && vqa_find_pictures(c, &d->paths) == ST_OK &&
        name_cache(d, c, &name))
        kept_enter(&name, out);
}

bool vqa_cache_load(vqa *d, const conf *c, hash128 *out_identity)
{
    kept_name name;
    if (d->paths.images_json[0] || vqa_find_pictures(c, &d->paths) != ST_OK ||
        !name_cache(d, c, &name) || access(name.path, R_OK) != 0)
        return false;
    if (load_questions(d, &name, out_identity) == ST_OK)
        return true;
    log_info("questions are read again: %s", status_text());
    return false;
}
