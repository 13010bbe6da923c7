/* kept.c: names, writes and opens the files of kept.h, and computes their sums. */
#include "prepd/dataset/kept.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/program/log.h"
#include "common/base/span.h"
#include "prepd/dataset/cache_folder.h"

enum {
    MORE_WORDS = 8, /* metadata entries of a file: those of the caller, the key and the sum */
    WAIT_MS = 100,  /* between two looks at a lock that another process holds */
};

status kept_name_make(const conf *options, const char *kind, hash128 name, hash128 key,
                      kept_name *out)
{
    char folder[PATH_MAX], text[HASH_TEXT];
    hash_print(name, text);
    hash_print(key, out->key);
    TRY(cache_folder(options, folder));
    if (snprintf(out->path, sizeof out->path, "%s/%s-%s.safetensors", folder, kind, text) >=
        (int)sizeof out->path)
        return FAIL_IN(ST_CANT_CREATE, folder, "the path is too long");
    return ST_OK;
}

bool kept_name_begin(const conf *options, uint64_t version, hasher **out)
{
    if (options->data_limit || hasher_new(out) != ST_OK)
        return false;
    hasher_add_u64(*out, version);
    hasher_add_text(*out, options->data_path);
    hasher_add_text(*out, options->data_split);
    return true;
}

bool kept_name_end(const conf *options, const char *kind, const record_files *files, hasher **hash,
                   kept_name *out)
{
    const hash128 name = hasher_value(*hash);
    records_stamp(files, *hash);
    const status st = kept_name_make(options, kind, name, hasher_value(*hash), out);
    hasher_free(hash);
    return st == ST_OK;
}

void kept_enter(const kept_name *name, cache_lock *out)
{
    char holder[LOCK_HOLDER];
    for (bool told = false;; told = true) {
        if (cache_lock_take(name->path, out, holder) != LOCK_TAKEN)
            return;
        if (!told)
            log_warn("%s is parsing the data; waiting until it is done file=%s", holder,
                     name->path);
        usleep(WAIT_MS * 1000);
    }
}

st_tensor kept_column(const char *name, st_dtype dtype, int64_t count, const void *data)
{
    return (st_tensor){.name = name,
                       .dtype = dtype,
                       .n_dims = 1,
                       .shape = {count},
                       .data = span_of(data, (size_t)count * st_dtype_size(dtype))};
}

static void add_named(hasher *hash, const char *name, const void *data, size_t size)
{
    hasher_add_text(hash, name);
    hasher_add_u64(hash, size);
    if (size)
        hasher_add(hash, data, size);
}

/* The sum of the digests of all tensors and words, each by itself. An ordered digest would not do,
 * because the order of tensors without bytes is not kept in a file. */
static status sum_of(const st_tensor *tensors, size_t count, const st_meta *words, size_t n_words,
                     char out[HASH_TEXT])
{
    uint64_t sum[2] = {count, 0}, one[2];
    hasher *hash = NULL;
    for (size_t k = 0; k < count + n_words; k++) {
        if (k >= count && strcmp(words[k - count].key, "sum") == 0)
            continue;
        TRY(hasher_new(&hash));
        if (k < count)
            add_named(hash, tensors[k].name, tensors[k].data.data, tensors[k].data.size);
        else
            add_named(hash, words[k - count].key, words[k - count].value,
                      strlen(words[k - count].value));
        const hash128 value = hasher_value(hash);
        hasher_free(&hash);
        memcpy(one, value.bytes, sizeof one);
        sum[0] += one[0];
        sum[1] += one[1];
    }
    hash128 all;
    memcpy(all.bytes, sum, sizeof all.bytes);
    hash_print(all, out);
    return ST_OK;
}

status kept_save(const kept_name *name, const st_tensor *tensors, size_t count,
                 const st_meta *words, size_t n_words)
{
    st_meta all[MORE_WORDS];
    char sum[HASH_TEXT] = "", aside[PATH_MAX + 32];
    if (n_words + 2 > MORE_WORDS)
        return FAIL(ST_INTERNAL, "%zu words are too many to keep beside the tensors", n_words);
    memcpy(all, words, n_words * sizeof *words);
    all[n_words] = (st_meta){"key", name->key};
    TRY(sum_of(tensors, count, all, n_words + 1, sum));
    all[n_words + 1] = (st_meta){"sum", sum};
    /* Writes under a name of its own first, because two daemons may start at the same time. */
    snprintf(aside, sizeof aside, "%s.%d", name->path, (int)getpid());
    TRY(st_write(aside, tensors, count, all, n_words + 2));
    if (rename(aside, name->path) == 0)
        return ST_OK;
    const status st = FAIL_IN(ST_CANT_CREATE, name->path, "%s", strerror(errno));
    unlink(aside);
    return st;
}

static status check_kept_file(const kept_name *name, const st_file *file)
{
    const char *key = st_meta_find(file, "key"), *wanted = st_meta_find(file, "sum");
    char sum[HASH_TEXT];
    if (!key || strcmp(key, name->key) != 0)
        return FAIL_IN(ST_NO_INPUT, name->path,
                       "it was made from other files or under other options");
    TRY(sum_of(file->tensors, file->n_tensors, file->meta, file->n_meta, sum));
    if (!wanted || strcmp(wanted, sum) != 0)
        return FAIL_IN(ST_BAD_INPUT, name->path, "it was changed after it was written");
    return ST_OK;
}

status kept_open(const kept_name *name, st_file *out)
{
    TRY(st_open(name->path, out));
    const status st = check_kept_file(name, out);
    if (st != ST_OK)
        st_close(out);
    return st;
}

status kept_words(const st_file *file, const char *path, const char *name, int64_t numbers,
                  int64_t want, const uint8_t **out, int64_t *out_n)
{
    const st_tensor *tensor;
    TRY(st_want(file, name, DT_I64, 1, path, &tensor));
    if (tensor->shape[0] % numbers || (want >= 0 && tensor->shape[0] != want * numbers))
        return FAIL_IN(ST_BAD_INPUT, path,
                       "%s has %" PRId64 " entries, which is not the number expected", name,
                       tensor->shape[0]);
    *out = tensor->data.data;
    *out_n = tensor->shape[0] / numbers;
    return ST_OK;
}

int64_t kept_number(const uint8_t *words, int64_t index)
{
    return (int64_t)load_u64(words + index * (int64_t)sizeof(int64_t));
}
