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

#include "common/conf/conf.h"
#include "common/json/json.h"
#include "common/tokenizer/tokenizer.h"
#include "prepd/agreed/fingerprints.h"
#include "prepd/sample/text.h"
#include "prepd/agreed/stage_times.h"
#include "prepd/worker/image_cache.h"
#include "prepd/worker/image_load.h"
#include "proto/codec.h"
#include "proto/wire.h"

typedef struct worker_options {
    const char *endpoint;   /* at which the dispatcher serves workers */
    const char *keys;       /* folder of CURVE keys; NULL for none */
    const char *data_root;  /* NULL: the lease names the root (local workers) or brings the files */
    const char *model;      /* NULL: model.path and model.tokenizer of TERMS */
    pid_t parent;           /* the dispatcher or a supervisor; the worker ends when it does */
    const char *supervisor; /* its id (supervisor.h); NULL for a child of the dispatcher */
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

#endif
