/* SPDX-License-Identifier: Apache-2.0 */
/* hf_folder.c: opens and indexes the files of a Hugging Face folder, and decides whether the head's
 * weights are the embedding's (hf_folder.h). */
#include "trainer/model/dims/hf_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/json/json.h"
#include "trainer/model/dims/convert.h"

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static status join_folder(char *out, size_t size, const char *folder, const char *name)
{
    if (snprintf(out, size, "%s/%s", folder, name) >= (int)size)
        return FAIL_IN(ST_BAD_INPUT, folder, "a path in this folder is longer than %zu bytes",
                       size);
    return ST_OK;
}

static bool has_file(const char *folder, const char *name)
{
    char path[STATUS_PATH_MAX];
    struct stat info;
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path &&
           lstat(path, &info) == 0;
}

bool hf_has_weights(const char *folder)
{
    return has_file(folder, single_name) || has_file(folder, index_name);
}

static status open_file(hf_folder *opened, const char *folder, const char *name)
{
    char path[STATUS_PATH_MAX];
    TRY(join_folder(path, sizeof path, folder, name));
    st_file *files = realloc(opened->files, (size_t)(opened->n_files + 1) * sizeof *files);
    if (!files)
        return FAIL(ST_NO_MEMORY, "no memory for the list of shards");
    opened->files = files;
    char **names = realloc(opened->names, (size_t)(opened->n_files + 1) * sizeof *names);
    if (!names)
        return FAIL(ST_NO_MEMORY, "no memory for the list of shards");
    opened->names = names;
    names[opened->n_files] = strdup(name);
    if (!names[opened->n_files])
        return FAIL(ST_NO_MEMORY, "no memory for the list of shards");
    status st = st_open(path, &files[opened->n_files]);
    if (st != ST_OK)
        free(names[opened->n_files]);
    else
        opened->n_files++;
    return st;
}

static int by_name(const void *left, const void *right)
{
    return strcmp((*(const st_tensor *const *)left)->name,
                  (*(const st_tensor *const *)right)->name);
}

static status sort_tensors(hf_folder *opened, const char *folder)
{
    size_t count = 0;
    for (int64_t i = 0; i < opened->n_files; i++)
        count += opened->files[i].n_tensors;
    opened->tensors = malloc((count + 1) * sizeof *opened->tensors);
    if (!opened->tensors)
        return FAIL(ST_NO_MEMORY, "no memory for %zu tensor names", count);
    for (int64_t i = 0; i < opened->n_files; i++)
        for (size_t j = 0; j < opened->files[i].n_tensors; j++)
            opened->tensors[opened->n_tensors++] = &opened->files[i].tensors[j];
    qsort(opened->tensors, count, sizeof *opened->tensors, by_name);
    for (size_t i = 1; i < count; i++) {
        const st_tensor *first = opened->tensors[i - 1], *second = opened->tensors[i];
        if (strcmp(first->name, second->name) == 0)
            return FAIL_IN(ST_BAD_INPUT, folder, "tensor %s is in two shards: %s and %s",
                           first->name, opened->names[hf_folder_file_of(opened, first)],
                           opened->names[hf_folder_file_of(opened, second)]);
    }
    return ST_OK;
}

static bool seen_before(const json_value *map, size_t index, const char *file)
{
    for (size_t j = index; j-- > 0;) {
        const char *key;
        if (strcmp(json_text(json_member(map, j, &key), ""), file) == 0)
            return true;
    }
    return false;
}

/* Checks that `file` holds tensor `name`, as the index says. */
static status check_place(const hf_folder *folder, const char *path, const char *name,
                          const char *file)
{
    const st_tensor *tensor = hf_folder_find(folder, name);
    if (!tensor)
        return FAIL_IN(ST_BAD_INPUT, path, "the index names tensor %s, but no shard holds it",
                       name);
    const char *found = folder->names[hf_folder_file_of(folder, tensor)];
    if (strcmp(found, file) != 0)
        return FAIL_IN(ST_BAD_INPUT, path,
                       "the index says that tensor %s is in %s, but it is in %s", name, file,
                       found);
    return ST_OK;
}

/* Opens every file that the index names once, then checks that each file holds its tensors. */
static status open_shards(hf_folder *opened, const char *folder, const char *path,
                          const json_value *index)
{
    const json_value *map = json_find(index, "weight_map");
    if (!map || json_typeof(map) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, path, "weight_map is missing or is not an object");
    const char *key, *last = "";
    for (size_t i = 0; i < json_count(map); i++) {
        const char *file = json_text(json_member(map, i, &key), NULL);
        if (!file || !file[0] || strchr(file, '/'))
            return FAIL_IN(ST_BAD_INPUT, path,
                           "weight_map.%s must be the name of a file in this folder", key);
        if (strcmp(file, last) != 0 && !seen_before(map, i, file))
            TRY(open_file(opened, folder, file));
        last = file;
    }
    TRY(sort_tensors(opened, folder));
    for (size_t i = 0; i < json_count(map); i++) {
        const char *file = json_text(json_member(map, i, &key), "");
        TRY(check_place(opened, path, key, file));
    }
    return ST_OK;
}

status hf_folder_open(const char *folder, hf_folder *out)
{
    char path[STATUS_PATH_MAX];
    hf_folder opened = {0};
    json_value *index = NULL;
    status st;
    if (!hf_has_weights(folder))
        return FAIL_IN(ST_NO_INPUT, folder, "has neither %s nor %s", single_name, index_name);
    TRY(join_folder(path, sizeof path, folder, index_name));
    if (has_file(folder, single_name)) {
        TRY_OR(undo, open_file(&opened, folder, single_name));
        TRY_OR(undo, sort_tensors(&opened, folder));
    } else {
        TRY_OR(undo, json_load(path, &index));
        TRY_OR(undo, open_shards(&opened, folder, path, index));
    }
    json_free(&index);
    *out = opened;
    return ST_OK;
undo:
    json_free(&index);
    hf_folder_close(&opened);
    return st;
}

void hf_folder_close(hf_folder *folder)
{
    for (int64_t i = 0; i < folder->n_files; i++) {
        st_close(&folder->files[i]);
        free(folder->names[i]);
    }
    free(folder->files);
    free(folder->names);
    free(folder->tensors);
    *folder = (hf_folder){0};
}

const st_tensor *hf_folder_find(const hf_folder *folder, const char *name)
{
    const st_tensor wanted = {.name = name}, *key = &wanted;
    const st_tensor **found = folder->n_tensors > 0
                                  ? bsearch(&key, folder->tensors, (size_t)folder->n_tensors,
                                            sizeof *folder->tensors, by_name)
                                  : NULL;
    return found ? *found : NULL;
}

int64_t hf_folder_file_of(const hf_folder *folder, const st_tensor *tensor)
{
    for (int64_t i = 0; i < folder->n_files; i++)
        if (tensor >= folder->files[i].tensors &&
            tensor < folder->files[i].tensors + folder->files[i].n_tensors)
            return i;
    return 0; /* tensor is not a tensor of this folder */
}

/* ---- the head ---- */

static const char key[] = "tie_word_embeddings";

static status read_tie(const json_value *object, const char *source, bool *inout)
{
    return json_find(object, key) ? json_want_bool(object, key, source, inout) : ST_OK;
}

status head_read_ties(const json_value *config, const char *source, head_ties *out)
{
    const json_value *text = json_find(config, "text_config");
    *out = (head_ties){0};
    TRY(read_tie(config, source, &out->top));
    out->text = out->top && !text;
    return text ? read_tie(text, source, &out->text) : ST_OK;
}

/* Compares by value, whatever the dtypes, as transformers does. */
static bool same_values(const st_tensor *first, const st_tensor *second)
{
    enum { CHUNK = 1024 };
    double x[CHUNK], y[CHUNK];
    if (first->n_dims != second->n_dims ||
        memcmp(first->shape, second->shape, (size_t)first->n_dims * sizeof *first->shape) != 0)
        return false;
    if (first->dtype == second->dtype)
        return memcmp(first->data.data, second->data.data, first->data.size) == 0;
    if (!convert_known(first->dtype) || !convert_known(second->dtype))
        return false;
    const size_t wide_a = st_dtype_size(first->dtype), wide_b = st_dtype_size(second->dtype);
    const int64_t count = (int64_t)(first->data.size / wide_a);
    for (int64_t at = 0, j; at < count; at += j) {
        j = count - at < CHUNK ? count - at : CHUNK;
        convert_to_double(x, first->data.data + (size_t)at * wide_a, first->dtype, j);
        convert_to_double(y, second->data.data + (size_t)at * wide_b, second->dtype, j);
        for (int64_t i = 0; i < j; i++)
            if (x[i] != y[i])
                return false;
    }
    return true;
}

status head_is_tied(const head_ties *ties, const char *folder, const char *text_prefix, bool *out)
{
    hf_folder hf = {0};
    char name[64];
    const bool either = ties->top || ties->text;
    *out = ties->top;
    if (!either || !hf_has_weights(folder))
        return ST_OK;
    TRY(hf_folder_open(folder, &hf));
    snprintf(name, sizeof name, "%sembed_tokens.weight", text_prefix);
    const st_tensor *head = hf_folder_find(&hf, "lm_head.weight");
    const st_tensor *embedding = hf_folder_find(&hf, name);
    /* If the embedding is missing, loading the folder fails and names it. */
    *out = head ? ties->top && (!embedding || same_values(head, embedding)) : either;
    hf_folder_close(&hf);
    return ST_OK;
}
