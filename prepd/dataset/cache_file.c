/* SPDX-License-Identifier: Apache-2.0 */
/* cache_file.c: names, writes and opens the files of cache_file.h, and computes their sums. */
#include "prepd/dataset/cache_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/span.h"
#include "common/program/log.h"

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
    /* Writes under its own name first, because two daemons may start at the same time. */
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

status kept_copy(const st_file *file, const char *path, const char *name, st_dtype dtype,
                 int64_t want, void **out, int64_t *out_n)
{
    const st_tensor *tensor;
    TRY(st_want(file, name, dtype, 1, path, &tensor));
    if (want >= 0 && tensor->shape[0] != want)
        return FAIL_IN(ST_BAD_INPUT, path, "%s has %" PRId64 " entries, expected %" PRId64, name,
                       tensor->shape[0], want);
    *out = malloc(tensor->data.size + st_dtype_size(dtype));
    if (!*out)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of %s", tensor->data.size, name);
    if (tensor->data.size)
        memcpy(*out, tensor->data.data, tensor->data.size);
    if (out_n)
        *out_n = tensor->shape[0];
    return ST_OK;
}

status kept_texts(const st_file *file, const char *path, const char *name, text_pool *out)
{
    int64_t count;
    TRY(kept_copy(file, path, name, DT_U8, -1, (void **)&out->bytes, &count));
    out->size = out->capacity = (size_t)count;
    return count && (out->bytes[0] != 0 || out->bytes[count - 1] != 0) ? kept_unfit(path) : ST_OK;
}

status kept_identity(const st_file *file, const char *path, hash128 *out)
{
    const char *identity = st_meta_find(file, "identity");
    return identity && hash_parse(identity, out)
               ? ST_OK
               : FAIL_IN(ST_BAD_INPUT, path, "it does not hold the identity of its data set");
}

status kept_unfit(const char *path)
{
    return FAIL_IN(ST_BAD_INPUT, path, "its entries contradict each other");
}

/* Tries the candidates of cache_file.h in order, makes the folder and checks it.
 */

static bool usable_folder(const char *path, mode_t mode)
{
    if (mkdir(path, mode) != 0 && errno != EEXIST)
        return false;
    return access(path, W_OK | X_OK) == 0;
}

/* Makes a folder where any user could have made one of this name, such as in /tmp. It is refused
 * unless it is ours alone, because another user could have put a false index there. */
static status own_folder(const char *path)
{
    struct stat info;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return FAIL_IN(ST_CANT_CREATE, path,
                       "the folder for the index cannot be made: %s; set prepd.cache_dir",
                       strerror(errno));
    if (lstat(path, &info) != 0)
        return FAIL_IN(ST_CANT_CREATE, path,
                       "the folder for the index cannot be read: %s; set prepd.cache_dir",
                       strerror(errno));
    if (S_ISDIR(info.st_mode) && info.st_uid == geteuid() && !(info.st_mode & (S_IWGRP | S_IWOTH)))
        return ST_OK;
    return FAIL_IN(ST_CANT_CREATE, path,
                   "there is no folder for the index: this one %s, so another user may have made "
                   "it; remove it or set prepd.cache_dir",
                   S_ISLNK(info.st_mode)      ? "is a symbolic link"
                   : !S_ISDIR(info.st_mode)   ? "is not a folder"
                   : info.st_uid != geteuid() ? "belongs to another user"
                                              : "can be written by other users");
}

status cache_folder(const conf *options, char out[PATH_MAX])
{
    const char *home = getenv("HOME"), *xdg = getenv("XDG_CACHE_HOME"), *tmp = getenv("TMPDIR");
    char first[PATH_MAX] = "";
    if (options->prepd_cache_dir[0]) {
        snprintf(out, PATH_MAX, "%s", options->prepd_cache_dir);
        if (usable_folder(out, 0777))
            return ST_OK;
        return FAIL_IN(ST_CANT_CREATE, out,
                       "prepd.cache_dir cannot be written: %s; name a folder that can",
                       strerror(errno));
    }
    struct stat info;
    snprintf(out, PATH_MAX, "%s", options->data_path);
    char *brace =
        stat(out, &info) == 0
            ? NULL
            : strchr(out,
                     '{'); /* data.path is a pattern of tars: the folder is what stands before it */
    if (brace)
        *brace = 0;
    char *slash = strrchr(out, '/');
    if (slash && (brace || (stat(out, &info) == 0 && !S_ISDIR(info.st_mode))))
        *slash = 0;
    if (snprintf(first, sizeof(first), "%s/.tessera", out) < (int)sizeof(first) &&
        usable_folder(first, 0777)) {
        snprintf(out, PATH_MAX, "%s", first);
        return ST_OK;
    }
    if (xdg && xdg[0] == '/') {
        snprintf(out, PATH_MAX, "%s/tessera", xdg);
    } else if (home && home[0] == '/') {
        char cache[PATH_MAX];
        snprintf(cache, sizeof(cache), "%s/.cache", home);
        (void)usable_folder(cache, 0700);
        snprintf(out, PATH_MAX, "%s/.cache/tessera", home);
    } else {
        out[0] = 0;
    }
    if (!out[0] || !usable_folder(out, 0700)) {
        snprintf(out, PATH_MAX, "%s/tessera-%d", tmp && tmp[0] == '/' ? tmp : "/tmp",
                 (int)geteuid());
        TRY(own_folder(out));
    }
    log_info("the index is kept elsewhere, because %s cannot be written folder=%s", first, out);
    return ST_OK;
}

/* flock(2) on FILE.lock. The holder removes the file before it unlocks it, so a
 * process that has just locked a file must check that it is still the one with that name. */

enum { TRIES = 16, LEAST_FD = 3 /* so that a descriptor is never 0, which means "not held" */ };

static lock_answer none(const char *path)
{
    (void)FAIL_IN(ST_OS, path, "%s", strerror(errno));
    return LOCK_NONE;
}

/* A lock file that another user made may only be readable, which is enough to lock it on a local
 * disk. */
static int open_lock(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 && (errno == EACCES || errno == EPERM))
        fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fd < LEAST_FD) {
        const int other = fcntl(fd, F_DUPFD_CLOEXEC, LEAST_FD);
        close(fd);
        fd = other;
    }
    return fd;
}

static void say_who(int fd)
{
    char host[64] = "", text[LOCK_HOLDER];
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "localhost");
    const int length = snprintf(text, sizeof text, "pid %d on %s", (int)getpid(), host);
    if (ftruncate(fd, 0) == 0)
        (void)!pwrite(fd, text, (size_t)length, 0); /* only people read it */
}

static void read_who(int fd, char out[LOCK_HOLDER])
{
    const ssize_t got = pread(fd, out, LOCK_HOLDER - 1, 0);
    out[got > 0 ? got : 0] = 0;
    if (got <= 0)
        snprintf(out, LOCK_HOLDER, "another prepd");
    for (char *letter = out; *letter; letter++)
        if (*letter < ' ' || *letter > '~')
            *letter = '?';
}

/* Whether the last holder removed the file after it was opened here. Then the lock on it is worth
 * nothing, because the next process would make a new file. */
static bool is_gone(int fd, const char *path)
{
    struct stat ours, there;
    return fstat(fd, &ours) != 0 || stat(path, &there) != 0 || ours.st_ino != there.st_ino ||
           ours.st_dev != there.st_dev;
}

lock_answer cache_lock_take(const char *file, cache_lock *out, char out_holder[LOCK_HOLDER])
{
    out->fd = 0;
    if (snprintf(out->path, sizeof out->path, "%s.lock", file) >= (int)sizeof out->path) {
        errno = ENAMETOOLONG;
        return none(file);
    }
    for (int i = 0; i < TRIES; i++) {
        const int fd = open_lock(out->path);
        if (fd < 0)
            return none(out->path);
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            if (!is_gone(fd, out->path)) {
                say_who(fd);
                out->fd = fd;
                return LOCK_OURS;
            }
            close(fd);
            continue;
        }
        const lock_answer answer = errno == EWOULDBLOCK ? LOCK_TAKEN : none(out->path);
        if (answer == LOCK_TAKEN)
            read_who(fd, out_holder);
        close(fd);
        return answer;
    }
    snprintf(out_holder, LOCK_HOLDER,
             "another prepd"); /* holders come and go faster than we look */
    return LOCK_TAKEN;
}

void cache_lock_leave(cache_lock *lock)
{
    if (lock->fd <= 0)
        return;
    unlink(lock->path);
    close(lock->fd);
    lock->fd = 0;
}
