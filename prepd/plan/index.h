/* SPDX-License-Identifier: Apache-2.0 */
/* index.h: what is known of every sample and every image before anything is decoded.
 *
 * The index has one small record per sample (how many tokens its text has) and one per image file
 * (its size and its picture's). Workers build it once; the dispatcher maps its file. It is a cache:
 * deleting the file costs time and nothing else. Its digest is the identity of the data in HELLO,
 * in a cursor and in a checkpoint, so a stream can only be continued on the same data.
 *
 * The file is index-<hash of options and data-set identity>.tsx in prepd.cache_dir; its layout is
 * at the top of index.c. It is written under a temporary name and renamed. Magic, version, counts
 * and an XXH3-128 of every byte are checked before it is used, and whoever opens it also checks
 * whether an image's size or modification time has changed since. */
#ifndef TESSERA_PREPD_PLAN_INDEX_H
#define TESSERA_PREPD_PLAN_INDEX_H

#include "common/base/hash.h"
#include "common/base/span.h"
#include "prepd/dataset/dataset.h"

/* Texts of records that were read from an index live as long as the index. */
typedef struct index_image {
    int64_t file_bytes;
    int64_t mtime_ns;
    int32_t width, height; /* pixels after orientation, or of a clip's frames; 0 if unusable */
    const char *cause;     /* why the image is unusable; NULL if it is usable */
    int64_t frames;        /* frames of a clip; 0 for a still picture */
    double fps;            /* frames per second of a clip; 0 if unknown */
} index_image;

typedef struct index_sample {
    int32_t text_tokens; /* the chat template included, image pads not */
    int32_t targets;     /* supervised tokens */
    const char *cause;   /* why the sample is refused; NULL if it is not. A sample with an unusable
                          * image gets its cause from the image */
} index_sample;

/* How a sample begins, for samples that share their beginnings (data.group shared_prefix). Tokens
 * are counted in the text: pads of pictures and clips are not among them. All are 0 for a refused
 * sample. */
typedef struct index_beginning {
    int64_t
        before; /* how many samples back its predecessor is, with which it is compared; 0: none */
    int32_t agrees; /* how many tokens it has in common with the predecessor, from the first on;
                     * both show the same pictures */
    int32_t head;   /* tokens before its last picture, or before the last frames of its last clip;
                     * 0 without a picture */
    int32_t first_label; /* which token is the first with a label */
} index_beginning;

typedef struct data_index data_index;

/* Building: an empty index, filled record by record in any order (a second record of the same
 * sample or image replaces the first), then sealed. Records and their texts are copied. A record
 * with impossible figures is refused with BAD_INPUT. */
WARN_UNUSED status index_new(int64_t n_samples, int64_t n_images, data_index **out);
WARN_UNUSED status index_put_image(data_index *index, int64_t image, const index_image *record);
WARN_UNUSED status index_put_sample(data_index *index, int64_t sample, const index_sample *record);
/* Makes an empty index one with beginnings. Its digest differs from that of the same records
 * without them. Call it before any record is put. */
WARN_UNUSED status index_take_beginnings(data_index *index);
/* Puts the beginning of a sample, which needs the sample's own record first. Refused with BAD_INPUT
 * where the figures are impossible. */
WARN_UNUSED status index_put_beginning(data_index *index, int64_t sample,
                                       const index_beginning *record);
/* While building: whether the record of the sample is there; its cause may then be asked for. */
bool index_has_sample(const data_index *index, int64_t sample);
/* Says which data the records describe (dataset_contents); it goes into the digest, so call it
 * before index_seal. */
void index_identify(data_index *index, hash128 contents);
/* Ends building and computes the digest. Every record must be present. A sample whose predecessor
 * was refused gets none, so that it does not matter when the cause became known. */
WARN_UNUSED status index_seal(data_index *index);
/* Gives a sealed or loaded index the digest of the same records under another identity of the data
 * set: the one that includes the weights of a mixture. The file keeps the digest without them, so
 * one file serves all weights. */
WARN_UNUSED status index_mix(data_index *index, hash128 identity);

/* Writes a sealed index. `key` stands for the options and the data; loading asks for the same. */
WARN_UNUSED status index_save(const data_index *index, const char *path, hash128 key);
/* NO_INPUT if there is no file, BAD_INPUT with the reason if it is stale or damaged. In both cases
 * the caller builds the index again. */
WARN_UNUSED status index_load(const char *path, hash128 key, data_index **out);
/* The same from bytes in memory, which must outlive the index. `source` names them in errors. */
WARN_UNUSED status index_parse(span file, const char *source, hash128 key, data_index **out);
void index_free(data_index **index);

int64_t index_samples(const data_index *index);
int64_t index_images(const data_index *index);
void index_image_get(const data_index *index, int64_t image, index_image *out);
void index_sample_get(const data_index *index, int64_t sample, index_sample *out);
bool index_has_beginnings(const data_index *index);
/* Only of an index with beginnings. */
void index_beginning_get(const data_index *index, int64_t sample, index_beginning *out);
hash128 index_digest(const data_index *index);
hash128 index_contents(const data_index *index); /* the digest that stands in the file */

#endif
