/* SPDX-License-Identifier: Apache-2.0 */
/* session.h: everything a run needs, opened in order from the resolved options: device, model,
 * parameters, stream of rows, buffers for staging. train, eval, check, probe and the benches all
 * begin here; step.c then drives the session. */
#ifndef TESSERA_TRAINER_RUN_SESSION_H
#define TESSERA_TRAINER_RUN_SESSION_H

#include "common/conf/conf.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/batch/batch_caps.h"
#include "trainer/batch/upload_ring.h"
#include "trainer/checkpoint/state/base.h"
#include "trainer/checkpoint/state/progress.h"
#include "trainer/checkpoint/save/snapshot.h"
#include "trainer/generate/generate.h"
#include "trainer/input/receive.h"
#include "trainer/model/params/params.h"
#include "trainer/model/qwen3vl.h"
#include "trainer/optim/groups.h"
#include "trainer/optim/optim.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/world.h"
#include "trainer/plan/plan_device.h"

/* Sums of one step in device memory. */
typedef struct step_sums {
    double *loss, *weight; /* [1] each */
    void *aux; /* [1], of the type in which the device accumulates (backend_vtable.acc) */
} step_sums;

enum session_use { SESSION_TRAIN, SESSION_EVAL };

/* A checkpoint, or a copy in memory, to go on from. */
typedef struct resume_point {
    char path[STATUS_PATH_MAX];
    const snapshot *copy; /* where snapshot_find has found it; NULL: it is a checkpoint */
    /* With a copy, which has no frozen values: a checkpoint that has them; "": they are those of
     * the model's own files. */
    char base[STATUS_PATH_MAX];
    /* Of a copy without such a checkpoint: the folder of checkpoints, whose base.json names the
     * base that the run began with. */
    const char *folder;
    progress progress;
} resume_point;

typedef struct session {
    const conf *conf;
    enum session_use use;
    const world *world;       /* NULL: a single process */
    const resume_point *from; /* NULL: starts from the model's own values and the first row */
    bool any_stream;          /* accepts a daemon whose options differ from ours */
    bool for_bench;           /* values that are drawn repeat (params_init_repeating) */
    char *stream_options;     /* options of the train stream as JSON; heap; NULL for a recording */
    char
        *recording; /* index and stream options of the recording as JSON; heap; NULL for a daemon */
    char *endpoint; /* of the daemon that serves this rank; heap */
    mesh mesh;      /* for a single rank every group has one member */
    device *device;
    char choices[CHOICES_TEXT]; /* what it chose before step 1 (device/choices.h); "": nothing */
    stream *stream;
    model_dims dims;
    params *params;
    bool from_weights;     /* values were read from files, not drawn by the initialiser */
    run_base base;         /* of what is frozen, after session_base; else without rows */
    bool frozen_is_finite; /* no frozen value is NaN or infinite (step_parts.h) */
    receiver *train;       /* NULL in SESSION_EVAL */
    tokenizer *tokenizer;  /* NULL if no folder has one */
    int64_t seq_len;       /* of the stream's rows */
    bucket_list buckets;   /* shape buckets of its micro-batches */
    batch_caps cap;        /* capacities of the largest micro-batch, held-out rows included */
    int64_t stream_rows;   /* of all epochs; -1: endless or not known */
    int64_t earlier_steps; /* done with the rows of earlier generations of the data */
    bool new_generation;   /* data.generation was raised since the checkpoint: begins at row 0 */
    model *model;
    upload_ring *upload_ring; /* micro-batches on their way to the device */
    bool same_shapes;         /* ranks agree on the shape of every micro-batch */
    stager *stager;           /* one of the upload ring's stagers, used for evaluation */
    generator *generator;     /* NULL: no answers are generated */
    optimizer *optimizer;
    schedule schedule;
    plan_device planned;        /* the device that memory is planned for (session_memory.h) */
    int64_t planned_by_options; /* bytes of the plan made before the stream's shapes were known */
    recomputes recomputed;      /* what activation checkpointing computes again */
    training_share share;       /* the part of each kind of work that trains, for useful FLOPs */
    step_sums sums;
    int64_t accumulation;     /* micro-batches a step */
    received *got;            /* [local_batch_size] rows of the current micro-batch */
    row *rows;                /* [local_batch_size] the same rows in the form that staging reads */
    struct step_slots *steps; /* steps under way; owned by step.c */
} session;

/* Opens everything for a rank of `job` (NULL: alone); with SESSION_TRAIN also the train stream and
 * the optimiser. Calls that open leave *out closed when they fail. Options, world and resume point
 * are borrowed until session_close. */
WARN_UNUSED status session_open(const conf *settings, const world *job, enum session_use use,
                                session *out);
/* Opens SESSION_TRAIN for a bench as a rank of `job` (NULL: alone). Values that would be drawn
 * repeat, which saves most of the time that a big model takes to open. With any_stream it takes
 * whatever the daemon streams: the daemon's options are not compared with ours, so the model folder
 * needs no tokenizer. */
WARN_UNUSED status session_open_bench(const conf *settings, const world *job, bool any_stream,
                                      session *out);
/* Names the base and hashes what is frozen, once, for checkpoints. Every rank calls it. */
WARN_UNUSED status session_base(session *run);
/* Whether the registry has adapters and frozen rows by the options. An evaluation of weight files
 * alone has neither. */
static inline bool session_has_parts(const session *run)
{
    return run->use == SESSION_TRAIN || run->from;
}
/* Dimensions of model.path, cut to model.layers layers if that is set. */
WARN_UNUSED status session_dims(const conf *options, model_dims *out);
/* Returns ST_CONFIG if the layout needs another number of ranks than `there`. */
WARN_UNUSED status session_check_layout(const conf *settings, int there);
/* session_open in two parts. session_connect opens the device, the mesh and, with SESSION_TRAIN, the
 * registry without values; after it the ranks can exchange messages over out->mesh, for instance to
 * agree on a checkpoint. session_load opens the rest, with values, moments and stream as the
 * checkpoint `from` left them (NULL: from the start). ST_CONFIG names the option if the stream would
 * differ from the checkpoint's. With SESSION_EVAL a world of one rank evaluates alone, whatever the
 * layout. */
WARN_UNUSED status session_connect(const conf *settings, const world *job, enum session_use use,
                                   session *out);
WARN_UNUSED status session_load(const resume_point *from, session *inout);
/* Releases everything, also of a session that is only partly open. */
void session_close(session *run);

/* Opens another stream of the same daemon, such as "eval", with a receiver of its own. With
 * feed.replay the rows come from that recording. */
WARN_UNUSED status session_stream(const session *run, const char *stream_name, const conf *settings,
                                  receiver **out);

/* Between these two calls nothing is captured and no graph runs. */
void session_capture_pause(session *run, bool paused);

/* True if a run with these options evaluates. Held-out rows come from a daemon; a recording has
 * only the rows it was made of. */
bool session_evaluates(const conf *settings);

/* Warns if the first loss is near ln(vocabulary), the loss of a model that guesses, although the
 * values were read from files: the weights may be untrained, or in a layout that was misread. Also
 * warns if the loss is not finite. */
void session_check_first_loss(const session *run, double loss);

#endif
