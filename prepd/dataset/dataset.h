/* dataset.h: what an adapter gives: samples in data-set order, as text and image paths. No pixels,
 * no tokens: adapters run in the dispatcher, which never decodes.
 *
 * An adapter opens a folder or file, checks its structure and keeps it compactly; a sample that
 * cannot be used (unknown image id, empty answer, wrong type, duplicate question id, no annotation)
 * stays in the list with its cause, so that check can name it and indices never shift. */
#ifndef TESSERA_PREPD_DATASET_H
#define TESSERA_PREPD_DATASET_H

#include <stdint.h>

#include "common/conf/conf.h"
#include "common/base/status.h"

typedef struct dataset dataset;

enum { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT };

/* A piece of a message: text, or image number `image` of the sample (text NULL). A clip (a video,
 * or a folder of frames) is an image too. */
typedef struct part {
    const char *text;
    int64_t text_bytes;
    int32_t image; /* -1 for text */
} part;

typedef struct turn {
    int role;
    bool trained; /* loss on this turn's text and its end token; assistant turns only */
    part *parts;
    int32_t n_parts;
    const float *weights; /* [n_parts] of the loss on each part, the last one's on the end token
                           * too; 0 = none; NULL: all 1 */
} turn;

typedef struct sample {
    uint64_t id;       /* position in the data set */
    const char *name;  /* "question 458752000", for messages */
    const char *cause; /* NULL, or why the adapter refuses it */
    turn *turns;
    int32_t n_turns;
    int32_t *images; /* [n_images] into the data set's image list */
    int32_t n_images;
    bool plain;         /* no chat: one turn's text, all of it trained, and the end of a text */
    int64_t text_bytes; /* about how long its texts are; 0: short */
} sample;               /* lives in the arena given to dataset_sample */

/* Where an image's bytes are: a file under the root, or a piece of one, or a folder of frames. */
enum { PLACE_PATH = 4096 };
typedef struct image_place {
    char path[PLACE_PATH]; /* of the file or folder, relative to root */
    int64_t offset, bytes; /* bytes -1: the whole file */
    bool video;            /* the file is a video */
    int32_t n_frames;      /* of a folder of frames; 0: a file */
    double fps;            /* of such frames */
} image_place;

/* A part of a mixture: samples [first, first + n). weight: its share of an epoch's samples is
 * weight / sum of weights; 0 everywhere: every sample once an epoch. */
typedef struct dataset_part {
    const char *name;
    int64_t first, n;
    double weight;
} dataset_part;

typedef struct dataset_vtable {
    const char *name;
    status (*open)(const conf *c, dataset **out);
    void (*close)(dataset *d);
    int64_t (*samples)(const dataset *d);
    status (*sample)(const dataset *d, int64_t i, arena *a, sample *out);
    /* The same without turns: what planning asks of every sample. Reads no file. */
    status (*outline)(const dataset *d, int64_t i, arena *a, sample *out);
    int64_t (*images)(const dataset *d); /* distinct image files */
    /* Its name, for messages; relative to root, and where its bytes are unless `place` says other.
     */
    const char *(*image_path)(const dataset *d, int64_t j);
    void (*place)(const dataset *d, int64_t j, image_place *out); /* NULL: files of their own */
    /* Name of frame k in folder j; no such function: there are no folders of frames. */
    const char *(*frame)(const dataset *d, int64_t j, int32_t k);
    /* True if an image is a video file; no such function: none is. */
    bool (*videos)(const dataset *d);
    const char *(*root)(const dataset *d); /* absolute folder of the images */
    /* Absolute folder that the file of image j has to lie in to be sent to others
     * (dataset_image_open), root or another one: what the user named. NULL: root. */
    const char *(*holder)(const dataset *d, int64_t j);
    /* What answers sample i is judged by, as JSON; NULL or no such function: nothing but its text.
     * VQAv2: {"question_id":N,"question_type":T,"answer_type":T,"answers":[..]}. */
    const char *(*reference)(const dataset *d, int64_t i);
    /* Which piece of a source that can only be read in pieces holds the sample: rises with i. -1,
     * or no such function: any sample can be read at any time. */
    int64_t (*chunk)(const dataset *d, int64_t i);
    /* The parts of a mixture, how many; no such function: there is one. */
    int (*parts)(const dataset *d, const dataset_part **out);
    /* Digest of everything above except image bytes. */
    hash128 (*identity)(const dataset *d);
    /* The same without the weights of parts, which say how often samples come and not what they
     * are. NULL: identity. */
    hash128 (*contents)(const dataset *d);
} dataset_vtable;

struct dataset {
    const dataset_vtable *v;
};

/* Picks the adapter by data.format; formats not built in are refused by name. */
WARN_UNUSED status dataset_open(const conf *c, dataset **out);
void dataset_close(dataset **d);
hash128 dataset_contents(const dataset *d);
void dataset_image_place(const dataset *d, int64_t j, image_place *out);
/* path, relative to root, is the file that image j lies in, or one of its frames. */
bool dataset_image_has(const dataset *d, int64_t j, const char *path);
/* What is there now: bytes (of a piece, as the data set says; of a folder, all its frames together)
 * and the time of the last change; both 0 where it is no regular file or cannot be read. */
void dataset_image_stat(const dataset *d, int64_t j, int64_t *out_bytes, int64_t *out_mtime_ns);

const char *dataset_holder(const dataset *d, int64_t j); /* dataset_vtable.holder */
/* Opens a file of image j, named by its path relative to root, with beneath_open below what holds
 * it: -1 and EXDEV where it lies outside. */
int dataset_image_open(const dataset *d, int64_t j, const char *path, int flags);

extern const dataset_vtable dataset_vqav2;
extern const dataset_vtable dataset_conversations;
extern const dataset_vtable dataset_text;
extern const dataset_vtable dataset_webdataset;
extern const dataset_vtable dataset_mixture;

#endif
