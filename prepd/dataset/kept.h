/* kept.h: what an adapter parsed, kept beside the index for the next start: tensors in a
 * safetensors file. Its key says of which files, as they were, and under which options; its sum
 * says that nothing in it has changed since, for a wrong place would give another sample without
 * any sign. It is a cache: what is absent, stale or damaged costs only time. */
#ifndef TESSERA_PREPD_DATASET_KEPT_H
#define TESSERA_PREPD_DATASET_KEPT_H

#include <limits.h>

#include "common/conf/conf.h"
#include "common/base/hash.h"
#include "common/model_folder/safetensors.h"
#include "prepd/dataset/cache_lock.h"
#include "prepd/dataset/records.h"

enum {
    KEPT_WORTH_BYTES = 8 << 20, /* of what was parsed; less is parsed at once */
    KEPT_WORTH_PACKED =
        KEPT_WORTH_BYTES / 16, /* of files that may be compressed, before they are */
};

typedef struct kept_name {
    char path[PATH_MAX];
    char key[HASH_TEXT];
} kept_name;

/* KIND-<name>.safetensors in the cache folder. name: of what tells one data set from another and
 * stays when its files change, so that sources of a mixture lie beside each other and a changed one
 * takes its predecessor's place; key: of all that what is kept depends on. */
WARN_UNUSED status kept_name_make(const conf *c, const char *kind, hash128 name, hash128 key,
                                  kept_name *out);

/* The same of record files. Between the two the caller adds to the hash which data set it is and
 * how it is read, beyond data.path and data.split. False, and nothing to free, where there is to be
 * no cache: only a part of the files is read (data.limit), or its name cannot be made. */
bool kept_name_begin(const conf *c, uint64_t version, hasher **out);
bool kept_name_end(const conf *c, const char *kind, const record_files *files, hasher **h,
                   kept_name *out);

/* Before kept_open, until kept_save is done or not needed (cache_lock_leave): one prepd at a time
 * parses a data set, the others wait here, say so in the log, and find what it kept. Without a lock
 * where none can be had. */
void kept_enter(const kept_name *name, cache_lock *out);

/* A tensor of one dimension. */
st_tensor kept_column(const char *name, st_dtype dtype, int64_t n, const void *data);
/* With the key and a sum of the tensors and these words. */
WARN_UNUSED status kept_save(const kept_name *name, const st_tensor *tensors, size_t n,
                             const st_meta *words, size_t n_words);
/* ST_NO_INPUT: it is not there, or of other files or options; ST_BAD_INPUT: it was changed. */
WARN_UNUSED status kept_open(const kept_name *name, st_file *out);
/* Words of this many numbers each; how many words, which is `want` unless that is -1. */
WARN_UNUSED status kept_words(const st_file *f, const char *path, const char *name, int64_t numbers,
                              int64_t want, const uint8_t **out, int64_t *out_n);
int64_t kept_number(const uint8_t *words, int64_t i);

/* Restart points of record files, as tensors of kept_save. */
enum { KEPT_POINT_TENSORS = 3 };
typedef struct kept_points {
    int64_t *files;   /* restart points and unpacked bytes of each */
    int64_t *points;  /* of all files, one after the other */
    uint8_t *windows; /* of the points that are not fresh */
    st_tensor tensors[KEPT_POINT_TENSORS];
} kept_points;
WARN_UNUSED status kept_points_of(const record_files *files, kept_points *out);
void kept_points_done(kept_points *k); /* also after a failure */
/* Gives every file its points; after a failure kept_points_forget takes back what was given. */
WARN_UNUSED status kept_points_take(record_files *files, const st_file *f, const char *path);
void kept_points_forget(record_files *files);
/* A place inside its file, which has its points. */
bool kept_place_is_sound(const record_files *files, const record_place *at);

#endif
