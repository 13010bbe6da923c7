/* vqa.h: what the VQAv2 adapter keeps in memory: texts in a pool, questions in an array, and one
 * answer for each question, the one that is trained. The 443,757 questions of the training split
 * take about 50 MB. Internal to vqav2.c and vqa_*.c. */
#ifndef TESSERA_PREPD_DATASET_VQA_H
#define TESSERA_PREPD_DATASET_VQA_H

#include "common/base/hash.h"
#include "common/json/json.h"
#include "common/model_folder/safetensors.h"
#include "prepd/dataset/cache_lock.h"
#include "prepd/dataset/dataset.h"
#include "prepd/dataset/tables.h"
#include "prepd/dataset/vqa_find.h"

/* Offsets in the pool are 0 for nothing. */
typedef struct vqa_question {
    int64_t id, image_id;
    int64_t offset;              /* of the question in its file, in bytes */
    int64_t text, answer, cause; /* offsets in the pool; a usable question has no cause */
    int64_t reference;           /* the same: what answers are judged by; 0 if it is not kept */
    int32_t text_bytes, answer_bytes;
    int32_t image; /* number of its picture; -1 if it has none */
    bool has_id;   /* its id can be read, and no question before it has the same */
    bool answered; /* it has an annotation */
} vqa_question;

/* A sample is `count` questions from vqa.order[first] on: one question, or a conversation. */
typedef struct vqa_sample {
    int64_t first;
    int32_t count;
} vqa_sample;

/* A picture inside a zip file. Its bytes are -1 if it is deflated there, because then it cannot be
 * read where it lies. */
typedef struct zip_picture {
    int64_t offset, bytes;
} zip_picture;

typedef struct vqa {
    dataset base;
    vqa_paths paths;
    text_pool texts;
    vqa_question *questions;
    int64_t n_questions, question_capacity;
    id_map by_question;   /* question id -> position in questions */
    int64_t *image_paths; /* [n_images] offset in the pool of the path, relative to paths.root */
    int64_t n_images, image_capacity;
    id_map by_image;     /* image id -> number of the picture */
    zip_picture *places; /* [n_places] pictures of a zip file; NULL if they are files */
    int64_t n_places, place_capacity;
    id_map place_of;   /* image id -> position in places; only while reading */
    int64_t *place_at; /* [n_images] position in places */
    int64_t place_at_capacity;
    int64_t *order; /* [n_questions] positions in questions; those of a sample stand together */
    vqa_sample *samples;
    int64_t n_samples;
    hash128 identity;
} vqa;

/* vqa_read.c: reads images.json, questions and annotations of set->paths. A bad item gets a cause;
 * a broken file is an error. Of the questions only the first `limit` are kept, or all of them if
 * that is 0. */
WARN_UNUSED status vqa_read(vqa *set, const conf *options, int64_t limit);

/* vqa_cache.c keeps what vqa_read made for the next start, because parsing a full training split
 * takes seconds. It keeps nothing of small files, of data with an images.json, or with references.
 *
 * vqa_cache_load returns true if it filled `set`; if it returns false, `set` is good for nothing
 * but closing. It checks the sum of the file and every entry; the caller compares the identity. */
bool vqa_cache_load(vqa *set, const conf *options, hash128 *out_identity);
/* Takes the lock under which the caller loads, or else reads and saves: see kept_enter. */
void vqa_cache_enter(vqa *set, const conf *options, cache_lock *out);
/* A failure is logged and costs only time. */
void vqa_cache_save(const vqa *set, const conf *options);
/* The part of loading that follows once key and sum are right: it checks every entry against the
 * others. It is public for the fuzzer, which cannot forge a sum. */
WARN_UNUSED status vqa_cache_take(vqa *set, const st_file *file, const char *path);

/* vqa_zip.c: finds the pictures of paths.picture_zip by the ids in their names. */
WARN_UNUSED status vqa_zip_pictures(vqa *set);
/* Streams the array under `key` of a JSON file, or of that member of a zip file if `member` is not
 * empty. `key`, `without` and `each` are those of json_stream_array (json.h). */
WARN_UNUSED status vqa_stream(const char *path, const char *member, const char *key,
                              const char *without, json_each each, void *user);

#endif
