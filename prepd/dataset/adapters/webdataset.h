/* SPDX-License-Identifier: Apache-2.0 */
/* webdataset.h: what the adapter of WebDataset tars keeps in memory after it has read the headers
 * of all members. Internal to webdataset.c and the web_*.c. */
#ifndef TESSERA_PREPD_DATASET_ADAPTERS_WEBDATASET_H
#define TESSERA_PREPD_DATASET_ADAPTERS_WEBDATASET_H

#include "common/base/hash.h"
#include "common/base/status.h"
#include "prepd/dataset/adapters/chat_record.h"
#include "prepd/dataset/tables.h"
#include "prepd/dataset/tar.h"

/* The member that a sample's texts come from. */
typedef enum words_kind { WORDS_NONE, WORDS_JSON, WORDS_TXT, WORDS_CLS, WORDS_KINDS } words_kind;

/* Where the bytes of a member are in its tar. */
typedef struct member_place {
    int64_t offset, bytes;
} member_place;

typedef struct web_image {
    member_place at;
    int64_t name; /* offset in webdataset.texts */
    int32_t shard;
    bool video;
} web_image;

typedef struct web_sample {
    member_place words;
    int64_t name, cause; /* offsets in webdataset.texts; a usable sample has the cause 0 */
    int64_t first_image; /* position in webdataset.images */
    int32_t n_images, shard;
    int32_t record, n_records; /* which of how many in the array of a .json; 0 of 0: no array */
    words_kind kind;
} web_sample;

typedef struct webdataset {
    dataset base;
    char root[TAR_NAME_MAX]; /* absolute folder of the tars */
    name_list shards;        /* the tars, relative to root */
    chat_rules rules;
    char *prompt;  /* data.prompt */
    int64_t limit; /* data.limit; 0: none */
    web_sample *samples;
    int64_t count, capacity; /* of samples */
    web_image *images;
    int32_t *numbers; /* [n_images] 0, 1, 2, ...: sample.images points into it, because the images
                       * of a sample are consecutive */
    int64_t n_images, image_capacity;
    bool any_video, any_array; /* of records in a .json */
    text_pool texts;
    hash128 identity;
} webdataset;

/* web_scan.c: reads the headers of all members into samples and images, and the words of each
 * sample to check them. Adds to `hash` everything that a sample can show, except for the bytes of
 * images. */
WARN_UNUSED status web_scan(webdataset *set, hasher *hash);

/* webdataset.c: turns bytes[length] of the member that from->kind names into turns. The sample's
 * images are numbered from 0, in the order of the tar. ST_BAD_INPUT begins with `source`. */
WARN_UNUSED status web_read_words(const webdataset *set, const web_sample *from, const char *bytes,
                                  size_t length, const char *source, arena *memory,
                                  chat_record *out);
/* Reads the bytes of a member of the open tar `fd`, terminated; the caller frees them. */
WARN_UNUSED status web_read_place(int fd, const char *path, member_place at, char **out);

/* Expands names with braces as shells do: {a,b} gives two names, and {000..127} gives 128
 * names whose numbers are as wide as the first bound if that begins with a 0. A name may have up to
 * eight pairs of braces; they cannot be nested. */

/* Receives one name, which is borrowed during the call. Any status but ST_OK ends the expansion. */
typedef status (*brace_each)(void *user, const char *name);
/* Calls `each` for every name, in order; a pattern without braces is one name. Returns what `each`
 * returned, or ST_CONFIG for braces that are empty, nested or do not close, for a range that falls,
 * and for more than a million names. */
WARN_UNUSED status braces_expand(const char *pattern, brace_each each, void *user);

#endif
