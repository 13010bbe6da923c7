/* SPDX-License-Identifier: Apache-2.0 */
/* cache_file.h: lets one process make a file of the cache while others that want it wait, and then
 * read what it made. A lock is an flock(2) on FILE.lock beside the file: the kernel releases it
 * when its holder dies, in whatever way. FILE.lock names the holder, and is removed with the lock.
 */
#ifndef TESSERA_PREPD_DATASET_CACHE_FILE_H
#define TESSERA_PREPD_DATASET_CACHE_FILE_H

#include <limits.h>

#include "common/base/hash.h"
#include "common/base/status.h"
#include "common/conf/conf.h"
#include "common/model_folder/safetensors.h"
#include "prepd/dataset/records.h"
#include "prepd/dataset/tables.h"

enum { LOCK_HOLDER = 128 }; /* bytes of a holder's name, with its end */
typedef struct cache_lock {
    int fd; /* 0: not held */
    char path[PATH_MAX];
} cache_lock;

typedef enum lock_answer {
    LOCK_OURS,
    LOCK_TAKEN, /* another living process has it; out_holder names it */
    LOCK_NONE,  /* no lock can be had here (a file system without locks, or no permission);
                 * status_text() says why */
} lock_answer;

/* Tries to take the lock of `file`, without waiting. out_holder is written for LOCK_TAKEN only:
 * "pid 12 on host", or "another prepd" where that cannot be read. */
lock_answer cache_lock_take(const char *file, cache_lock *out, char out_holder[LOCK_HOLDER]);
void cache_lock_leave(cache_lock *lock); /* does nothing if the lock is not held */

/* The folder in which the index and the parsed tables of a data set are kept from
 * one start to the next. All of it can be made again. */

/* Finds the folder and makes it if it does not exist. The candidates are, in order:
 * prepd.cache_dir; .tessera in the folder of the data; the user's cache folder
 * ($XDG_CACHE_HOME/tessera or
 * ~/.cache/tessera); tessera-UID in the temporary folder. If prepd.cache_dir is set, it is the only
 * candidate. The log says so when the folder of the data cannot be written.
 *
 * ST_CANT_CREATE if prepd.cache_dir cannot be written, or if no candidate can; the last candidate
 * is also refused if another user may have made it, because what lies in it would be believed. */
WARN_UNUSED status cache_folder(const conf *options, char out[PATH_MAX]);

/* Keeps what an adapter parsed beside the index for the next start, as tensors in a
 * safetensors file.
 *
 * The key of such a file covers the data files it was made from (path, size, time of change) and
 * the options they were read under. Its sum covers its own bytes, because a damaged place would
 * give another sample without any sign. It is a cache: a file that is absent, stale or damaged
 * costs only time. */

enum {
    /* Data of fewer unpacked bytes are not kept, because parsing them takes no time. */
    KEPT_WORTH_BYTES = 8 << 20,
    /* Before the files are unpacked: fewer bytes on disk cannot reach KEPT_WORTH_BYTES, if text
     * shrinks to no less than a sixteenth. */
    KEPT_WORTH_PACKED = KEPT_WORTH_BYTES / 16,
};

typedef struct kept_name {
    char path[PATH_MAX];
    char key[HASH_TEXT];
} kept_name;

/* Names the file KIND-<name>.safetensors in the cache folder. `name` is a digest of what tells one
 * data set from another and does not change with its files. So the sources of a mixture lie side by
 * side, and a data set that changed replaces its predecessor. `key` is a digest of everything that
 * the tables depend on. */
WARN_UNUSED status kept_name_make(const conf *options, const char *kind, hash128 name, hash128 key,
                                  kept_name *out);

/* The same in two steps, for record files. Between them the caller adds to the digest which data
 * set it is and how it is read, beyond data.path and data.split. Both return false, and leave
 * nothing to free, if nothing is to be kept: only part of the files is read (data.limit), or the
 * name cannot be made. kept_name_end frees the hasher. */
bool kept_name_begin(const conf *options, uint64_t version, hasher **out);
bool kept_name_end(const conf *options, const char *kind, const record_files *files, hasher **hash,
                   kept_name *out);

/* Takes the lock that is held from before kept_open until kept_save is done or turns out not to be
 * needed (cache_lock_leave). So one prepd parses a data set while the others wait here, say so in
 * the log, and then find what it kept. If no lock can be had, it goes on without one. */
void kept_enter(const kept_name *name, cache_lock *out);

/* A tensor of one dimension; `data` is borrowed. */
st_tensor kept_column(const char *name, st_dtype dtype, int64_t count, const void *data);
/* Writes the tensors and the metadata `words` (at most 6), with the key and a sum of both. The file
 * appears whole or not at all. */
WARN_UNUSED status kept_save(const kept_name *name, const st_tensor *tensors, size_t count,
                             const st_meta *words, size_t n_words);
/* Opens the file; the caller closes it. ST_NO_INPUT if it is missing or was made from other files
 * or options; ST_BAD_INPUT if its sum is wrong. */
WARN_UNUSED status kept_open(const kept_name *name, st_file *out);
/* Finds a column of records of `numbers` int64 numbers each. *out_n is how many records it has,
 * which must be `want` unless that is -1. The bytes stay the file's and may not be aligned:
 * kept_number reads number i. */
WARN_UNUSED status kept_words(const st_file *file, const char *path, const char *name,
                              int64_t numbers, int64_t want, const uint8_t **out, int64_t *out_n);
int64_t kept_number(const uint8_t *words, int64_t index);
/* Copies a column of one dimension to the heap, with room for one more entry. It must have `want`
 * entries, unless that is -1. out_n may be NULL. */
WARN_UNUSED status kept_copy(const st_file *file, const char *path, const char *name,
                             st_dtype dtype, int64_t want, void **out, int64_t *out_n);
/* Reads a text pool, which is empty or begins and ends with a zero byte. */
WARN_UNUSED status kept_texts(const st_file *file, const char *path, const char *name,
                              text_pool *out);
/* The identity of the data set, which kept_save got as a word. */
WARN_UNUSED status kept_identity(const st_file *file, const char *path, hash128 *out);
status kept_unfit(const char *path); /* fails: what the file holds contradicts itself */

/* The restart points of record files (unpack.h), as tensors for kept_save. */
enum { KEPT_POINT_TENSORS = 3 };
typedef struct kept_points {
    int64_t *files;   /* [2 * files] number of restart points and unpacked bytes of each file */
    int64_t *points;  /* [3 * points] those of all files, one after another */
    uint8_t *windows; /* the windows of the points that have one */
    st_tensor tensors[KEPT_POINT_TENSORS];
} kept_points;
WARN_UNUSED status kept_points_of(const record_files *files, kept_points *out);
void kept_points_done(kept_points *points); /* also after a failure */
/* Gives every file its restart points. After a failure kept_points_forget takes back what was
 * given. */
WARN_UNUSED status kept_points_take(record_files *files, const st_file *file, const char *path);
void kept_points_forget(record_files *files);
/* A place as three numbers. */
void kept_put_place(const record_place *at, int64_t out[3]);
record_place kept_get_place(const uint8_t *words, int64_t index);
/* Whether a place lies inside its file, which must have its restart points. */
bool kept_place_is_sound(const record_files *files, const record_place *at);

#endif
