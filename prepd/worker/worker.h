/* SPDX-License-Identifier: Apache-2.0 */
/* worker.h: a worker process, which gets leases and answers with rows or index records.
 *
 * It joins a dispatcher with the fingerprints of its decoders and tokenizer, learns the options
 * from TERMS, and does one lease at a time in one thread. It decides nothing about the stream: a
 * sample that cannot be decoded is reported (FAILED), and the dispatcher quarantines it and gives
 * the row out again. */
#ifndef TESSERA_PREPD_WORKER_H
#define TESSERA_PREPD_WORKER_H

#include <stdbool.h>
#include <sys/types.h>

#include "common/base/status.h"
#include "common/conf/conf.h"
#include "common/json/json.h"
#include "common/tokenizer/tokenizer.h"
#include "prepd/agreed/fingerprints.h"
#include "prepd/agreed/stage_times.h"
#include "prepd/sample/text.h"
#include "prepd/worker/media/image_cache.h"
#include "prepd/worker/media/image_load.h"
#include "proto/row/batch.h"
#include "proto/message/codec.h"
#include "proto/wire/wire.h"

typedef struct worker_options {
    const char *endpoint;   /* at which the dispatcher serves workers */
    const char *keys;       /* folder of CURVE keys; NULL for none */
    const char *data_root;  /* NULL: the lease names the root (local workers) or brings the files */
    const char *model;      /* NULL: model.path and model.tokenizer of TERMS */
    pid_t parent;           /* the dispatcher or a supervisor; the worker ends when it does */
    const char *supervisor; /* its id (worker.h); NULL for a child of the dispatcher */
    bool heard;             /* the supervisor has seen a dispatcher at the endpoint */
    const char *program;    /* argv[0], for libvips */
} worker_options;

/* Works until the dispatcher says BYE or has been away for a minute; a child of the dispatcher
 * leaves at once when it is away. *out_code is PROC_EXIT_AGAIN if the worker wants to be started
 * again as a fresh process, else 0. */
WARN_UNUSED status worker_run(const worker_options *options, int *out_code);

/* A picture that was decoded with a warning (image.warning). */
typedef struct damaged_image {
    int64_t sample;
    int32_t image; /* which of the sample's images */
    const char *warning;
} damaged_image;

/* Everything that a lease needs. It is set up once, from TERMS, and used for every lease. */
typedef struct workshop {
    const worker_options *options;
    const image_api *images;
    const video_api *videos; /* NULL if the data has no videos */
    fingerprints prints;     /* of the tokenizer, of the video decoder if it is loaded, and of rows
                              * if a supervisor started this worker */
    conf train, eval;
    bool have_conf;
    tokenizer *tokens;
    tokenizer_scratch *token_scratch;
    chat_ids chat;
    codec *packer;
    const wire_msg *parts; /* the message of the lease in work, with the files it brought */
    image_cache *cache;    /* NULL if there is none */
    int64_t cache_hits, cache_misses; /* in the lease in work */
    int64_t stage_ns[N_STAGES];       /* likewise: where its time went */
    const char
        *damage; /* the warning about the picture or clip decoded last, in the arena row; or NULL */
    damaged_image *damaged; /* [n_damaged] in the lease in work, in the arena row */
    int64_t n_damaged;
    wire_msg *items_made; /* the row's image parts, if pixels are sent as they are */
    row made;  /* the row that the lease in work became; its arrays are in the arena row, its pixels
                * there or in its message */
    arena row; /* memory of a lease: texts, patches, the row */
    arena sample; /* memory of one image: its file and pixels */
} workshop;

/* Sets up from TERMS: options, tokenizer (which must be the daemon's), codec, video module, and the
 * limit on memory. Call workshop_done even after a failure. */
WARN_UNUSED status workshop_init(workshop *shop, const worker_options *options,
                                 const image_api *images, const json_value *terms);
void workshop_done(workshop *shop);

/* Call before each image: frees the arena `sample`. Memory that a large image took is given back to
 * the system; otherwise it would count against prepd.worker_bytes for the next image, and a row
 * with two large images might never be made. */
void workshop_begin_image(workshop *shop);

/* Notes the warning with which an image was decoded, if it is not NULL. frame names the frame of a
 * clip; it is NULL for a picture. Only the first warning of an image is kept. */
WARN_UNUSED status workshop_note_damage(workshop *shop, const char *frame, const char *warning);

/* Adds the time since *inout_since to this stage, and sets *inout_since to now. */
void workshop_stage_end(workshop *shop, int stage, int64_t *inout_since);

/* Called before each item (a sample, or a file of an index lease) with its number. */
typedef status (*on_item)(void *user, int64_t item);

/* Does a row lease. out becomes the ROW message; or, if samples cannot be decoded, *out_failed
 * becomes the JSON of a FAILED message that names all of them, which the caller frees. */
WARN_UNUSED status make_row(workshop *shop, const json_value *lease, on_item on, void *user,
                            wire_msg *out, char **out_failed);
/* Does an index lease. *out becomes the JSON of a RECORDS message, which the caller frees. */
WARN_UNUSED status make_records(workshop *shop, const json_value *lease, on_item on, void *user,
                                char **out);

/* `prepd worker` as a user starts it: a small process that keeps workers alive.
 *
 * It starts each worker by exec and starts another when one dies. It says nothing about deaths: a
 * machine that the daemon does not control could say anything.
 *
 *   prepd worker (supervisor) --exec--> prepd worker --supervisor ID --JOIN--> dispatcher
 *
 * The supervisor touches no data and no image library. It tells the dispatcher that it is there,
 * and hears one thing from it: that the daemon is drained for good (BYE), at a time when there may
 * be no worker to hear it. */

/* Keeps n_workers workers running for the dispatcher at this endpoint. keys may be NULL. Each is
 * started as args [n_args] (argv[0] a path, then "worker" and its options), which are borrowed.
 * Returns when all have left in good order; when one was refused because it makes other rows
 * (ST_MISMATCH), or for what an operator must mend, such as a key without the role or a poor copy
 * of the data (its status); or after a signal or the dispatcher's BYE, which let them finish what
 * they have in work. A worker that broke the protocol, and a dispatcher that went away, are waited
 * for: 10 s, doubling to 10 minutes. */
WARN_UNUSED status supervisor_run(char *const *args, int n_args, int n_workers,
                                  const char *endpoint, const char *keys);

/* Reads the members of a lease, which prepd/serve/core/rows/payload.c writes. Its files
 * are read by image_files.h, its clips by clips.h. */

/* The options of the lease's stream, train or eval. */
const conf *lease_conf(const workshop *shop, const json_value *lease);
/* The folder of the images: this worker's --data-root, or the one the lease names. */
WARN_UNUSED status lease_root(const workshop *shop, const json_value *lease, const char **out);
/* The text of a failure without the root. The cause of a bad sample travels to other machines, so
 * it must name the file as the lease does. */
const char *lease_cause(const char *root, const char *text);

/* True for a failure that says nothing about the file in work: the lease is malformed, or this
 * process or machine is in trouble. The worker then gives up, and the lease is judged as after a
 * crash. A worker with files of its own (--data-root) goes on if it cannot read one:
 * lease_is_missing. */
bool lease_must_end(const workshop *shop, status code);
/* True for a file that cannot be read here. The dispatcher finds out whether the file is to blame.
 */
bool lease_is_missing(const workshop *shop, status code);

/* Reads {"id": .., "turns": [..]} as a sample with n_images images, in the arena. */
WARN_UNUSED status lease_read_sample(const json_value *object, int32_t n_images, arena *memory,
                                     sample *out);

/* The pictures of a row as PNG files, to look at what the model gets: turned upright,
 * resized, before normalisation. */

/* Writes every picture of the row and every frame of its clips, and prints a line for each picture
 * or clip. A path that ends in .png is the file of a single picture. Any other is a folder, made if
 * it is not there, for image-0.png and clip-1-frame-00.png, numbered as the sample shows them.
 * `program` is argv[0]. ST_USAGE if the row has no picture, or a file is named for several. */
WARN_UNUSED status row_png_write(const row *one, const char *path, const char *program);

#endif
