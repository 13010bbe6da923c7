/* vqa.h: inside of the VQAv2 adapter: what reading leaves in memory. 443,757 questions take about
 * 50 MB: texts in a pool, records in arrays, one answer per question (the one that is trained). */
#ifndef TESSERA_PREPD_DATASET_VQA_H
#define TESSERA_PREPD_DATASET_VQA_H

#include "common/base/hash.h"
#include "common/json/json.h"
#include "common/model_folder/safetensors.h"
#include "prepd/dataset/cache_lock.h"
#include "prepd/dataset/dataset.h"
#include "prepd/dataset/tables.h"
#include "prepd/dataset/vqa_find.h"

typedef struct vqa_question {
    int64_t id, image_id;
    int64_t offset;              /* of the item in the questions file */
    int64_t text, answer, cause; /* in the pool; cause 0 = usable */
    int64_t reference;           /* in the pool; 0 = not kept */
    int32_t text_bytes, answer_bytes;
    int32_t image; /* in the image list, -1 if none */
    bool has_id, answered;
} vqa_question;

/* A sample is n questions of vqa.order from first on: one, or a conversation. */
typedef struct vqa_sample {
    int64_t first;
    int32_t n;
} vqa_sample;

/* A picture inside a zip file; bytes -1: deflated there, so it cannot be read where it is. */
typedef struct zip_picture {
    int64_t offset, bytes;
} zip_picture;

typedef struct vqa {
    dataset base;
    vqa_paths paths;
    text_pool texts;
    vqa_question *questions;
    int64_t n_questions, question_capacity;
    id_map by_question;   /* question id -> question */
    int64_t *image_paths; /* [n_images] in the pool, relative to paths.root */
    int64_t n_images, image_capacity;
    id_map by_image;     /* image id -> image */
    zip_picture *places; /* [n_places] pictures in a zip file; NULL: files of their own */
    int64_t n_places, place_capacity;
    id_map place_of;   /* image id -> place, while reading */
    int64_t *place_at; /* [n_images] */
    int64_t place_at_capacity;
    int64_t *order; /* [n_questions] questions, those of a sample side by side */
    vqa_sample *samples;
    int64_t n_samples;
    int64_t suffix_at; /* data.suffix in the pool */
    hash128 identity;
} vqa;

/* Reads images.json, questions and annotations of d->paths. A bad item gets a cause; a broken file
 * is an error. drawn: answers are drawn by seed instead of multiple_choice_answer. limit: only the
 * first so many questions are kept, 0 = all. */
WARN_UNUSED status vqa_read(vqa *d, const conf *c, int64_t limit);

/* vqa_cache.c: what vqa_read left, kept for the next start: parsing a full training split takes
 * seconds. Only where it is worth it, without images.json and references. load: true if d holds it
 * now; else what is in d is of no use. The file has a sum, and every entry is checked besides; the
 * caller checks the identity. */
bool vqa_cache_load(vqa *d, const conf *c, hash128 *out_identity);
/* Before load and until what was read instead is saved: see kept_enter. */
void vqa_cache_enter(vqa *d, const conf *c, cache_lock *out);
void vqa_cache_save(const vqa *d, const conf *c); /* fails into the log: it costs time alone */
/* Of load, what is done once key and sum are right: every entry is checked against the others. */
WARN_UNUSED status vqa_cache_take(vqa *d, const st_file *f, const char *path);

/* vqa_zip.c: the pictures of paths.picture_zip, by the ids in their names. */
WARN_UNUSED status vqa_zip_pictures(vqa *d);
/* A list in a JSON file, or in a member of a zip file. key, without: json.h. */
WARN_UNUSED status vqa_stream(const char *path, const char *member, const char *key,
                              const char *without, json_each each, void *user);

#endif
