/* SPDX-License-Identifier: Apache-2.0 */
/* vqa_cache.c: keeps the tables of vqa.h for the next start (cache_file.h), as one tensor for each
 * column. */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/program/log.h"
#include "prepd/dataset/adapters/vqa.h"
#include "prepd/dataset/cache_file.h"

enum { VERSION = 5 };

/* The columns of a question, and where they stand in it. */
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

/* Adds path, size and time of change of a file to the digest, and its size to *inout_bytes. */
static status add_file(hasher *hash, const char *path, int64_t *inout_bytes)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return FAIL_IN(ST_NO_INPUT, path, "%s", strerror(errno));
    hasher_add_text(hash, path);
    hasher_add_u64(hash, (uint64_t)info.st_size);
    hasher_add_u64(hash, (uint64_t)info.st_mtim.tv_sec);
    hasher_add_u64(hash, (uint64_t)info.st_mtim.tv_nsec);
    *inout_bytes += info.st_size;
    return ST_OK;
}

/* Adds which data set it is and how it is read. All of this is needed, because sources of a mixture
 * may share a folder and differ in one option only. */
static void add_name(hasher *hash, const vqa *set, const conf *options)
{
    hasher_add_u64(hash, VERSION);
    hasher_add_text(hash, set->paths.questions);
    hasher_add_text(hash, set->paths.annotations);
    hasher_add_text(hash, set->paths.root);
    hasher_add_text(hash, set->paths.image_folder);
    hasher_add_text(hash, set->paths.subtype);
    hasher_add_text(hash, options->data_split);
    hasher_add_u64(hash, (uint64_t)options->data_group);
    hasher_add_u64(hash, (uint64_t)options->data_limit);
    hasher_add_u64(hash, (uint64_t)options->data_answer);
    hasher_add_u64(hash,
                   options->data_answer == ANSWER_DRAWN ? (uint64_t)options->training_seed : 0);
}

static status hash_key(const vqa *set, const conf *options, int64_t *out_bytes, kept_name *out,
                       hasher *hash)
{
    char zip[2 * VQA_PATH_MAX];
    int64_t ignored = 0;
    *out_bytes = 0;
    add_name(hash, set, options);
    const hash128 name = hasher_value(hash);
    TRY(add_file(hash, set->paths.questions, out_bytes));
    TRY(add_file(hash, set->paths.annotations, out_bytes));
    if (set->paths.picture_zip[0]) {
        snprintf(zip, sizeof zip, "%s/%s", set->paths.root, set->paths.picture_zip);
        TRY(add_file(hash, zip, &ignored));
    }
    if (*out_bytes < KEPT_WORTH_BYTES)
        return ST_OK;
    return kept_name_make(options, "vqav2", name, hasher_value(hash), out);
}

/* Names the file. False if nothing is to be kept. vqa_find_pictures must have been called. */
static bool name_cache(const vqa *set, const conf *options, kept_name *out)
{
    hasher *hash = NULL;
    int64_t bytes = 0;
    if (set->paths.images_json[0] || options->is_held_out)
        return false;
    status st = hasher_new(&hash);
    if (st == ST_OK)
        st = hash_key(set, options, &bytes, out, hash);
    hasher_free(&hash);
    if (st != ST_OK)
        log_info("the questions are not kept for the next start: %s", status_text());
    return st == ST_OK && bytes >= KEPT_WORTH_BYTES;
}

static status pack_columns(const vqa *set, st_tensor tensors[TENSORS], void *room[COLUMNS],
                           int *out_n)
{
    const size_t rows = (size_t)set->n_questions;
    int count = 0;
    tensors[count++] = kept_column("image_paths", DT_I64, set->n_images, set->image_paths);
    if (set->places) {
        tensors[count++] = kept_column("places", DT_I64, 2 * set->n_places, set->places);
        tensors[count++] = kept_column("place_at", DT_I64, set->n_images, set->place_at);
    }
    for (size_t k = 0; k < COLUMNS; k++) {
        size_t size = st_dtype_size(columns[k].dtype);
        char *column = room[k] = malloc(rows * size + 1);
        if (!column)
            return FAIL(ST_NO_MEMORY, "no memory for a column of %zu questions", rows);
        for (size_t i = 0; i < rows; i++)
            memcpy(column + i * size, (const char *)&set->questions[i] + columns[k].at, size);
        tensors[count++] = kept_column(columns[k].name, columns[k].dtype, (int64_t)rows, column);
    }
    tensors[count++] = kept_column("texts", DT_U8, (int64_t)set->texts.size, set->texts.bytes);
    *out_n = count;
    return ST_OK;
}

static status save_questions(const vqa *set, const kept_name *name)
{
    st_tensor tensors[TENSORS];
    void *room[COLUMNS] = {NULL};
    char identity[HASH_TEXT];
    int count = 0;
    hash_print(set->identity, identity);
    const st_meta words[] = {{"identity", identity}};
    status st = pack_columns(set, tensors, room, &count);
    if (st == ST_OK)
        st = kept_save(name, tensors, (size_t)count, words, sizeof words / sizeof *words);
    for (size_t k = 0; k < COLUMNS; k++)
        free(room[k]);
    return st;
}

void vqa_cache_save(const vqa *set, const conf *options)
{
    kept_name name;
    if (name_cache(set, options, &name) && save_questions(set, &name) != ST_OK)
        log_info("the questions are not kept for the next start: %s", status_text());
}

static status take_questions(vqa *set, const st_file *file, const char *path)
{
    const st_tensor *tensor;
    TRY(st_want(file, columns[0].name, columns[0].dtype, 1, path, &tensor));
    set->n_questions = tensor->shape[0];
    set->questions = calloc((size_t)set->n_questions + 1, sizeof *set->questions);
    if (!set->questions)
        return FAIL(ST_NO_MEMORY, "no memory for %" PRId64 " questions", set->n_questions);
    for (size_t k = 0; k < COLUMNS; k++) {
        size_t size = st_dtype_size(columns[k].dtype);
        TRY(st_want(file, columns[k].name, columns[k].dtype, 1, path, &tensor));
        if (tensor->shape[0] != set->n_questions)
            return FAIL_IN(ST_BAD_INPUT, path, "%s has another length than the first column",
                           columns[k].name);
        for (int64_t i = 0; i < set->n_questions; i++)
            memcpy((char *)&set->questions[i] + columns[k].at, tensor->data.data + (size_t)i * size,
                   size);
    }
    return ST_OK;
}

/* Whether a terminated text of `count` bytes, or of any length if `count` is -1, lies inside the
 * pool. */
static bool is_text(const text_pool *pool, int64_t at, int64_t count)
{
    if (at < 0 || (size_t)at >= pool->size || count >= (int64_t)pool->size - at)
        return false;
    return count < 0 ? memchr(pool->bytes + at, 0, pool->size - (size_t)at) != NULL
                     : pool->bytes[at + count] == 0;
}

static bool is_consistent(const vqa *set)
{
    bool ok = set->n_questions > 0 && set->texts.size > 0 && set->texts.bytes[0] == 0 &&
              set->n_images <= INT32_MAX &&
              (set->paths.picture_zip[0] != 0) == (set->places != NULL);
    for (int64_t j = 0; ok && j < set->n_images; j++)
        ok = is_text(&set->texts, set->image_paths[j], -1) &&
             (!set->places || (set->place_at[j] >= 0 && set->place_at[j] < set->n_places));
    for (int64_t i = 0; ok && i < set->n_questions; i++) {
        const vqa_question *question = &set->questions[i];
        ok = is_text(&set->texts, question->text, question->text_bytes) &&
             question->text_bytes >= 0 &&
             is_text(&set->texts, question->answer, question->answer_bytes) &&
             question->answer_bytes >= 0 && is_text(&set->texts, question->cause, -1) &&
             question->image >= -1 && question->image < set->n_images &&
             (question->cause || question->image >= 0);
    }
    return ok;
}

status vqa_cache_take(vqa *set, const st_file *file, const char *path)
{
    int64_t n_places = 0;
    TRY(kept_texts(file, path, "texts", &set->texts));
    TRY(kept_copy(file, path, "image_paths", DT_I64, -1, (void **)&set->image_paths,
                  &set->n_images));
    if (st_find(file, "places")) {
        TRY(kept_copy(file, path, "places", DT_I64, -1, (void **)&set->places, &n_places));
        set->n_places = n_places / 2;
        TRY(kept_copy(file, path, "place_at", DT_I64, set->n_images, (void **)&set->place_at,
                      NULL));
    }
    TRY(take_questions(set, file, path));
    return is_consistent(set) ? ST_OK : kept_unfit(path);
}

static status load_questions(vqa *set, const kept_name *name, hash128 *out_identity)
{
    st_file file;
    TRY(kept_open(name, &file));
    status st = kept_identity(&file, name->path, out_identity);
    if (st == ST_OK)
        st = vqa_cache_take(set, &file, name->path);
    st_close(&file);
    return st;
}

void vqa_cache_enter(vqa *set, const conf *options, cache_lock *out)
{
    kept_name name;
    if (!set->paths.images_json[0] && vqa_find_pictures(options, &set->paths) == ST_OK &&
        name_cache(set, options, &name))
        kept_enter(&name, out);
}

bool vqa_cache_load(vqa *set, const conf *options, hash128 *out_identity)
{
    kept_name name;
    if (set->paths.images_json[0] || vqa_find_pictures(options, &set->paths) != ST_OK ||
        !name_cache(set, options, &name) || access(name.path, R_OK) != 0)
        return false;
    if (load_questions(set, &name, out_identity) == ST_OK)
        return true;
    log_info("the questions are read again, because what was kept cannot be used: %s",
             status_text());
    return false;
}
