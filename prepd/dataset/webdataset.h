/* webdataset.h: inside of the adapter of WebDataset tars: what a scan of their headers leaves in
 * memory. */
#ifndef TESSERA_PREPD_DATASET_WEBDATASET_H
#define TESSERA_PREPD_DATASET_WEBDATASET_H

#include "common/base/hash.h"
#include "prepd/dataset/chat_record.h"
#include "prepd/dataset/names.h"
#include "prepd/dataset/tar.h"

typedef enum words_kind { WORDS_NONE, WORDS_JSON, WORDS_TXT, WORDS_CLS } words_kind;

/* Bytes of a member. */
typedef struct member_place {
    int64_t offset, bytes;
} member_place;

typedef struct web_image {
    member_place at;
    int64_t name; /* in texts */
    int32_t shard;
    bool video;
} web_image;

typedef struct web_sample {
    member_place words;
    int64_t name, cause; /* in texts; cause 0 = usable */
    int64_t first_image;
    int32_t n_images, shard;
    words_kind kind;
} web_sample;

typedef struct webdataset {
    dataset base;
    char root[TAR_NAME_MAX];
    name_list shards; /* relative to root */
    chat_rules rules;
    char *prompt;
    int64_t limit;
    web_sample *samples;
    int64_t n, capacity;
    web_image *images;
    int32_t *numbers; /* [n_images] 0, 1, ...: a sample's images are a run of them */
    int64_t n_images, image_capacity;
    bool any_video;
    text_pool texts;
    hash128 identity;
} webdataset;

/* web_scan.c: finds the tars of data.path, then reads the headers of all members into samples and
 * images; h gets all that a sample can show but the bytes of images. */
WARN_UNUSED status web_find_shards(webdataset *d, const conf *c);
WARN_UNUSED status web_scan(webdataset *d, hasher *h);

/* web_words.c */
/* Words of a sample as turns, its images as numbers from 0 in the order of the tar; bytes [n] of
 * the member that s->kind names. ST_BAD_INPUT with the source. */
WARN_UNUSED status web_read_words(const webdataset *d, const web_sample *s, const char *bytes,
                                  size_t n, const char *source, arena *a, chat_record *out);
/* Bytes of a member, terminated; heap. */
WARN_UNUSED status web_read_place(int fd, const char *path, member_place at, char **out);

#endif
