/* index.h: one record per sample and per image file, built once by workers, mapped by the
 * dispatcher. A cache: deleting it costs time only. Its digest is the data set's identity in HELLO,
 * cursor and checkpoint.
 *
 * The file (index-<hash of options and data set identity>.tsx in prepd.cache_dir) is written to a
 * temporary name and renamed; magic, version, counts and an XXH3-128 of everything are checked
 * before use, and an image whose size or mtime changed since makes it stale. */
#ifndef TESSERA_PREPD_PLAN_INDEX_H
#define TESSERA_PREPD_PLAN_INDEX_H

#include "common/base/hash.h"
#include "common/base/span.h"
#include "prepd/dataset/dataset.h"

typedef struct index_image {
    int64_t file_bytes;
    int64_t mtime_ns;
    int32_t width, height; /* oriented, or of a clip's frames; 0 if unusable */
    const char *cause;     /* NULL, or why it is unusable */
    int64_t frames;        /* of a clip; 0: a still picture */
    double fps;            /* of a clip; 0: unknown */
} index_image;

typedef struct index_sample {
    int32_t text_tokens; /* without image pads, template included */
    int32_t targets;     /* supervised tokens */
    const char *cause;   /* NULL, or why the sample is refused; a bad image's cause comes from it */
} index_sample;

typedef struct data_index data_index;

/* Empty, to be filled record by record (any order), then sealed. */
WARN_UNUSED status index_new(int64_t n_samples, int64_t n_images, data_index **out);
WARN_UNUSED status index_put_image(data_index *x, int64_t j, const index_image *r); /* copies */
WARN_UNUSED status index_put_sample(data_index *x, int64_t i, const index_sample *r);
/* Which data the records are of (dataset_contents), for the digest; call it before index_seal. */
void index_identify(data_index *x, hash128 contents);
WARN_UNUSED status index_seal(data_index *x); /* every record present; computes the digest */
/* For a sealed or loaded index: its digest is from now on that of the same records under the data
 * set's identity, which includes the weights of a mixture. The file has the digest without them, so
 * it is the same whatever the weights are. */
WARN_UNUSED status index_mix(data_index *x, hash128 identity);

WARN_UNUSED status index_save(const data_index *x, const char *path, hash128 key);
/* ST_NO_INPUT if absent, ST_BAD_INPUT with the reason if stale or damaged: build it again. */
WARN_UNUSED status index_load(const char *path, hash128 key, data_index **out);
/* The same from bytes that outlive the index; source names them in errors. */
WARN_UNUSED status index_parse(span file, const char *source, hash128 key, data_index **out);
void index_free(data_index **x);

int64_t index_samples(const data_index *x);
int64_t index_images(const data_index *x);
void index_image_get(const data_index *x, int64_t j, index_image *out);
void index_sample_get(const data_index *x, int64_t i, index_sample *out);
hash128 index_digest(const data_index *x);
hash128 index_contents(const data_index *x); /* the digest that the file has */

#endif
