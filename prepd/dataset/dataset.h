/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.h: what every adapter of a data format provides: samples in the order of the data set, as
 * texts and the places of their images. There are no pixels and no tokens here, because adapters
 * run in the dispatcher, which never decodes anything.
 *
 * An adapter opens a folder or a file, checks its structure and keeps what it needs to find each
 * sample again. A sample that cannot be used (an unknown image id, an empty answer, a value of the
 * wrong type, a question id given twice, a missing annotation) stays in the list together with the
 * cause. So `prepd check` can name it, and the indices of the other samples never shift.
 *
 * Samples are numbered from 0, and so are the distinct images of the data set. All functions run on
 * the dispatcher's thread; a pointer that they return lives as long as the data set, unless the
 * function says otherwise. */
#ifndef TESSERA_PREPD_DATASET_H
#define TESSERA_PREPD_DATASET_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/conf/conf.h"

typedef struct dataset dataset;

enum { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT };

/* A piece of a message: a text, or an image of the sample. A clip (a video file or a folder of
 * frames) counts as an image too. */
typedef struct part {
    const char *text; /* UTF-8, terminated; NULL for an image */
    int64_t text_bytes;
    int32_t image; /* which of the sample's images, from 0; -1 for a text */
} part;

typedef struct turn {
    int role;     /* ROLE_... */
    bool trained; /* this turn's text and its end token count in the loss; assistant turns only */
    part *parts;  /* [n_parts] */
    int32_t n_parts;
    const float *weights; /* [n_parts] weight of each part in the loss, 0 for no loss; the end token
                           * has the weight of the last part. NULL: every weight is 1 */
} turn;

/* Everything in it lives in the arena given to the call, or in the data set. */
typedef struct sample {
    uint64_t id;       /* position in the data set */
    const char *name;  /* for messages: "question 458752000", "talks.jsonl:17" */
    const char *cause; /* why the adapter refuses it; NULL for a usable sample */
    turn *turns;       /* [n_turns] */
    int32_t n_turns;
    int32_t *images; /* [n_images] numbers of its images in the data set, in the order shown */
    int32_t n_images;
    bool plain;         /* plain text without a chat template: one turn, all of its text trained,
                         * and the token that ends a text */
    int64_t text_bytes; /* roughly how long its texts are; 0 for short ones */
} sample;

/* Where the bytes of an image are: a file below the root, a piece of such a file, or a folder of
 * frames. */
enum { PLACE_PATH = 4096 };
typedef struct image_place {
    char path[PLACE_PATH]; /* of the file or the folder, relative to the root */
    int64_t offset, bytes; /* the piece, in bytes; bytes is -1 for the whole file */
    bool video;            /* the file is a video */
    int32_t n_frames;      /* pictures in a folder of frames; 0 for a file */
    double fps;            /* frames a second of such a folder */
} image_place;

/* One source of a mixture, which has the samples [first, first + count). Its share of an epoch's
 * samples is its weight divided by the sum of all weights. If all weights are 0, an epoch has every
 * sample once. */
typedef struct dataset_part {
    const char *name;
    int64_t first, count;
    double weight;
} dataset_part;

/* What an adapter implements. A function that is marked optional may be NULL. */
typedef struct dataset_vtable {
    const char *name;
    status (*open)(const conf *options, dataset **out);
    void (*close)(dataset *set);
    int64_t (*samples)(const dataset *set); /* how many samples there are */
    /* Reads sample `number`. ST_BAD_INPUT if a file has changed since it was opened. */
    status (*sample)(const dataset *set, int64_t number, arena *memory, sample *out);
    /* The same without the turns. Planning asks this of every sample, so it reads no file. */
    status (*outline)(const dataset *set, int64_t number, arena *memory, sample *out);
    int64_t (*images)(const dataset *set); /* how many distinct images there are */
    /* The name of image `index`, for messages. If the adapter has no `place`, it is also the path
     * of the image's file, relative to the root. */
    const char *(*image_path)(const dataset *set, int64_t index);
    /* Fills in where image `index` is. Optional: without it, each image is a separate file. */
    void (*place)(const dataset *set, int64_t index, image_place *out);
    /* File name of frame `nth` in folder `index`. Optional: without it, there are no folders of
     * frames. */
    const char *(*frame)(const dataset *set, int64_t index, int32_t nth);
    /* Whether any image is a video file. Optional: without it, none is. */
    bool (*videos)(const dataset *set);
    const char *(*root)(const dataset *set); /* absolute path of the folder of the images */
    /* Absolute path of the folder that the user named for image `index`. Its file may be sent to
     * other machines only if it lies in there (dataset_image_open). Optional: without it, the root.
     */
    const char *(*holder)(const dataset *set, int64_t index);
    /* The answers that sample `number` is judged by, as JSON. NULL if only its text is known. VQAv2
     * gives
     * {"question_id":N,"question_type":T,"answer_type":T,"answers":[..]}. Optional. */
    const char *(*reference)(const dataset *set, int64_t number);
    /* Which piece of a file that can only be entered at restart points holds sample `number`; it
     * never falls as `number` grows. -1 if any sample can be read at any time. Optional: without
     * it, -1. */
    int64_t (*chunk)(const dataset *set, int64_t number);
    /* The sources of a mixture; returns how many. Optional: without it, there is one source. */
    int (*parts)(const dataset *set, const dataset_part **out);
    /* Digest of everything above except the bytes of the images. */
    hash128 (*identity)(const dataset *set);
    /* The same without the weights of the sources, which say how often samples come and not what
     * they are. Optional: without it, the identity. */
    hash128 (*contents)(const dataset *set);
} dataset_vtable;

struct dataset {
    const dataset_vtable *adapter;
};

/* Opens data.path with the adapter that data.format names. The errors are the adapter's: ST_CONFIG
 * for options that do not go together, ST_NO_INPUT for a file that is missing, ST_BAD_INPUT for one
 * that is broken as a whole. */
WARN_UNUSED status dataset_open(const conf *options, dataset **out);
void dataset_close(dataset **set); /* sets *set to NULL; NULL is allowed */

/* The source of a mixture in which a sample is, and the piece of a file (dataset_vtable.chunk). */
typedef struct sample_place {
    int64_t source, piece;
} sample_place;
sample_place dataset_sample_place(const dataset *set, int64_t number);
hash128 dataset_contents(const dataset *set); /* dataset_vtable.contents, or else the identity */
/* Where image `index` is; fills in every member. */
void dataset_image_place(const dataset *set, int64_t index, image_place *out);
/* Whether `path`, relative to the root, is the file that holds image `index`,
 * or one of its frames. */
bool dataset_image_has(const dataset *set, int64_t index, const char *path);
/* The size of image `index` now, in bytes, and the time of its last change: of a piece of a file
 * the size that the data set gives it, of a folder the sum over its frames and their latest change.
 * Both are 0 if a file cannot be read or is not a regular file. *out_bytes is -1, and the time 0,
 * if that cannot be found out now (dataset.h). */
void dataset_image_stat(const dataset *set, int64_t index, int64_t *out_bytes,
                        int64_t *out_mtime_ns);

const char *dataset_holder(const dataset *set,
                           int64_t index); /* dataset_vtable.holder, or the root */
/* Opens a file of image `index` for sending it to another machine; `path` is relative to the root.
 * Returns a descriptor that the caller closes, or -1 with errno, which is EXDEV if the file lies
 * outside the folder that the user named (dataset.h). */
int dataset_image_open(const dataset *set, int64_t index, const char *path, int flags);

extern const dataset_vtable dataset_vqav2;
extern const dataset_vtable dataset_conversations;
extern const dataset_vtable dataset_text;
extern const dataset_vtable dataset_webdataset;
extern const dataset_vtable dataset_mixture;

/* Opens files below a folder, and never a file outside it, whatever links lie there.
 *
 * The folder itself is the one that the user named: it may be a link, or lie below one. Below it, a
 * link is followed if it is relative and stays below the folder; a link that is absolute, that
 * climbs out or that leads through /proc is refused. Where the kernel has no openat2 (before 5.6),
 * or a filter of system calls refuses it, no link is followed at all. File systems that are mounted
 * below the folder belong to it. */

/* Opens `path`, which is relative to `folder`, with the flags of open(2) and O_CLOEXEC. Returns a
 * descriptor, or -1 with errno: EXDEV if a link leads out of the folder or the path climbs. */
int beneath_open(const char *folder, const char *path, int flags);
/* What beneath_open does where there is no openat2: it opens each folder on the way by itself and
 * follows no link. */
int beneath_walk(const char *folder, const char *path, int flags);

/* Tells a fault of a file from a fault of the machine that tried to open, stat or
 * read it. */

/* True for an errno that says something about the file itself: it is missing, its path is wrong, or
 * it may not be read. Any other error is a problem of the machine that met it (a disk, a mount, too
 * many descriptors), which may pass. */
static inline bool file_error_is_its_own(int error)
{
    return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP ||
           error == EACCES || error == EPERM || error == ENXIO; /* ENXIO: the file is a socket */
}

#endif
