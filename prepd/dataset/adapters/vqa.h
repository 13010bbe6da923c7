/* SPDX-License-Identifier: Apache-2.0 */
/* vqa.h: finds the files of one split of a VQAv2 folder. Names are matched liberally, because
 * people unpack archives in their own way and rename folders. If nothing fits, the error says what
 * was looked for. */
#ifndef TESSERA_PREPD_DATASET_ADAPTERS_VQA_H
#define TESSERA_PREPD_DATASET_ADAPTERS_VQA_H

#include "common/base/hash.h"
#include "common/base/status.h"
#include "common/conf/conf.h"
#include "common/json/json.h"
#include "common/model_folder/safetensors.h"
#include "prepd/dataset/cache_file.h"
#include "prepd/dataset/dataset.h"
#include "prepd/dataset/tables.h"

enum { VQA_PATH_MAX = 4096, VQA_NAME_MAX = 256 }; /* bytes, with the end */

typedef struct vqa_paths {
    char questions[VQA_PATH_MAX];         /* absolute; of the JSON file or of its zip file */
    char annotations[VQA_PATH_MAX];       /* the same */
    char question_member[VQA_NAME_MAX];   /* name inside the zip file; "" if it is not in one */
    char annotation_member[VQA_NAME_MAX]; /* the same */
    char images_json[VQA_PATH_MAX];       /* the list of image names; "" if the folder has none */
    char root[VQA_PATH_MAX];              /* absolute folder that image paths start from */
    char holder[VQA_PATH_MAX]; /* the folder that the user named, without links, if the data set
                                * itself says where root is; else "" */
    char image_folder[VQA_NAME_MAX]; /* below root, with a slash at its end; or "" */
    char subtype[VQA_NAME_MAX];      /* "train2014", as in the names COCO_train2014_%012d.jpg */
    char picture_zip[VQA_NAME_MAX];  /* below root; "" if the pictures are separate files */
} vqa_paths;

/* Finds questions, annotations and images.json of data.split in data.path. ST_CONFIG if two files
 * fit equally well. */
WARN_UNUSED status vqa_find_files(const conf *options, vqa_paths *out);
/* Finds the folder whose pictures have the official names, or else the zip file (train2014.zip). */
WARN_UNUSED status vqa_find_pictures(const conf *options, vqa_paths *paths);
/* Finds the folder that the names of images.json start from: the folder of the pictures, its images
 * folder, or the one that the list's note names ("file_name is relative to images-extra/"), which
 * may also lie beside it. `first` is a file_name of the list; the folder that holds it is
 * preferred. Leaves image_folder empty. */
WARN_UNUSED status vqa_find_listed(const conf *options, const char *note, const char *first,
                                   vqa_paths *paths);

/* What the VQAv2 adapter keeps in memory: texts in a pool, questions in an array, and one
 * answer for each question, the one that is trained. The 443,757 questions of the training split
 * take about 50 MB. Internal to vqav2.c and vqa_*.c. */

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

#endif
