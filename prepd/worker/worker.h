/* worker.h: a worker process: lease in, frames out; one thread does the image work.
 *
 * It joins a dispatcher with the fingerprint of its decoder, learns the options from TERMS, and
 * does one lease at a time. It never decides anything about the stream: a sample that cannot be
 * decoded is reported (FAILED), the dispatcher flags it and gives the row again. */
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
    const char *endpoint;  /* of the dispatcher's workers */
    const char *keys;      /* folder of CURVE keys; NULL: none */
    const char *data_root; /* NULL: the lease's own root (local workers), or its files come along */
    const char *model;     /* NULL: model.path and model.tokenizer of the terms */
    pid_t parent;          /* leave when it goes: the dispatcher, or a supervisor */
    const char *supervisor; /* supervisor.h; NULL: a child of the dispatcher */
    bool heard;             /* the supervisor has heard a dispatcher there */
    const char *program;    /* argv[0], for vips */
} worker_options;

/* Until the dispatcher says BYE, or has been away for a minute (one of its children: at once).
 * out_code: PROC_EXIT_AGAIN, it is to be started anew, with nothing of its past; else 0. */
WARN_UNUSED status worker_run(const worker_options *o, int *out_code);

/* A picture that was decoded with a warning (image.warning): image k of a sample. */
typedef struct damaged_image {
    int64_t sample;
    int32_t k;
    const char *warning;
} damaged_image;

/* What a lease needs; made from TERMS. */
typedef struct workshop {
    const worker_options *o;
    const image_api *images;
    const video_api *videos; /* NULL: the data has none */
    fingerprints prints;     /* of the videos' decoder, if there is one, and the tokenizer */
    conf train, eval;
    bool have_conf;
    tokenizer *tokens;
    tokenizer_scratch *token_scratch;
    chat_ids chat;
    codec *packer;
    const wire_msg *parts;            /* the lease in work as it came, with the files it brought */
    image_cache *cache;               /* NULL: none */
    int64_t cache_hits, cache_misses; /* of the lease in work, as stage_ns */
    int64_t stage_ns[N_STAGES];
    const char *damage; /* of the picture or clip decoded last, in words; NULL: none; in `row` */
    damaged_image *damaged; /* [n_damaged] of the lease in work; in `row` */
    int64_t n_damaged;
    wire_msg *items_made; /* its items' parts, where pixels travel as they are */
    arena row;            /* a lease: texts, patches, the row */
    arena sample;         /* one image: file, pixels */
} workshop;

WARN_UNUSED status workshop_init(workshop *s, const worker_options *o, const image_api *images,
                                 const json_value *terms);
void workshop_done(workshop *s);

/* Before each image: `sample` is free again. What a large one took is given back, or it would be
 * missing within prepd.worker_bytes for the next, and a row of two might never be made. */
void workshop_begin_image(workshop *s);

/* What was decoded came with this warning (NULL: none). of: the frame, of a clip; else NULL. */
WARN_UNUSED status workshop_note_damage(workshop *s, const char *of, const char *warning);

/* The time since then was this stage's. */
void workshop_stage_end(workshop *s, int stage, int64_t *inout_since);

/* Tells which item is in work; called before each. */
typedef status (*on_item)(void *user, int64_t item);

/* LEASE_ROW: out holds the ROW message, or *out_failed a FAILED object (heap JSON). */
WARN_UNUSED status make_row(workshop *s, const json_value *lease, on_item on, void *user,
                            wire_msg *out, char **out_failed);
/* The records of an index lease, as a RECORDS object (heap JSON). */
WARN_UNUSED status make_records(workshop *s, const json_value *lease, on_item on, void *user,
                                char **out);

#endif
