/* session.h: everything a run stands on, opened in order from the resolved options: device, model,
 * parameters, stream, staging. train, eval and probe start here; step.c drives it. */
#ifndef TESSERA_TRAINER_RUN_SESSION_H
#define TESSERA_TRAINER_RUN_SESSION_H

#include "common/conf/conf.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/batch/shape_bucket.h"
#include "trainer/batch/upload_ring.h"
#include "trainer/checkpoint/progress.h"
#include "trainer/generate/generate.h"
#include "trainer/input/receive.h"
#include "trainer/model/params.h"
#include "trainer/model/qwen3vl.h"
#include "trainer/optim/groups.h"
#include "trainer/optim/optim.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/world.h"
#include "trainer/plan/plan_device.h"

/* Device sums of one step. */
typedef struct step_sums {
    double *loss, *weight; /* [1] each */
    void *aux;             /* [1] acc */
} step_sums;

enum session_use { SESSION_TRAIN, SESSION_EVAL };

/* A checkpoint to go on from. */
typedef struct resume_point {
    char path[STATUS_PATH_MAX];
    progress progress;
} resume_point;

typedef struct session {
    const conf *conf;
    enum session_use use;
    const world *world;       /* NULL: alone */
    const resume_point *from; /* NULL: from the model's own values and the first row */
    bool any_stream;          /* the daemon's options are not compared with ours */
    char *stream_options;     /* of the train stream; heap, NULL of a recording */
    char *recording; /* index and stream options that it is of, as JSON; heap, NULL of a daemon */
    mesh mesh;       /* of one rank: every group is a group of one */
    device *device;
    stream *stream;
    model_dims dims;
    params *params;
    bool from_weights;    /* values came from files, not from the initialiser */
    receiver *train;      /* NULL for eval */
    tokenizer *tokenizer; /* NULL without a folder to read it from */
    int64_t seq_len;      /* of the stream's rows */
    bucket_list buckets;  /* of its micro-batches */
    batch_caps cap;       /* of the largest micro-batch, held-out ones included */
    int64_t stream_rows;  /* of all epochs; -1: without end, or not known */
    model *model;
    upload_ring *upload_ring; /* batches on their way */
    stager *stager;           /* one of the upload ring's, for evaluation */
    generator *generator;     /* NULL: no question is answered in the model's own words */
    optimizer *optimizer;
    schedule schedule;
    plan_device planned;        /* which memory is planned for (session_memory.h) */
    int64_t planned_by_options; /* bytes, before the stream's shapes were known */
    recomputes recomputed;      /* of activation checkpointing */
    training_share share;       /* of the work that trains, for FLOPs */
    step_sums sums;
    int64_t accumulation;     /* micro-steps per step */
    received *got;            /* [local_batch_size] rows of the micro-batch under way */
    row *rows;                /* [local_batch_size] the same, as staging reads them */
    struct step_slots *steps; /* under way; of step.c */
} session;

/* Opens all of it for one rank; with SESSION_TRAIN also the train stream and the optimiser. */
WARN_UNUSED status session_open(const conf *c, enum session_use use, session *out);
/* For evaluation as a rank of w (NULL, or of one: alone, whatever the layout). */
WARN_UNUSED status session_open_rank(const conf *c, const world *w, session *out);
/* The same to train on whatever the daemon streams: its options are not compared with ours, so no
 * tokenizer is needed. For benches. */
WARN_UNUSED status session_open_any(const conf *c, session *out);
/* The model of model.path, as far as model.layers leaves it. */
WARN_UNUSED status session_dims(const conf *c, model_dims *out);
/* Refuses a layout whose number of ranks is not that of the world. */
WARN_UNUSED status session_check_layout(const conf *c, int there);
/* SESSION_TRAIN as a rank of w (NULL: alone), with values, moments and stream as the checkpoint
 * left them; without one (from NULL) as session_open. ST_CONFIG names the option where the stream
 * would be another. w and from are borrowed. */
WARN_UNUSED status session_resume(const conf *c, const world *w, const resume_point *from,
                                  session *out);
/* The same in two parts, between which the ranks may speak with each other by out->mesh: its device
 * and mesh; then all the rest. */
WARN_UNUSED status session_meet(const conf *c, const world *w, session *out);
WARN_UNUSED status session_go_on(const resume_point *from, session *inout);
void session_close(session *s); /* accepts a half-opened one */

/* Another stream of the same daemon ("eval"), with its own receiver. With feed.replay its rows. */
WARN_UNUSED status session_stream(const session *s, const char *stream_name, const conf *c,
                                  receiver **out);

/* Held-out rows come from the daemon; a recording has only those it was made of. */
bool session_evaluates(const conf *c);

/* Warns where the first loss on weights that claim to be trained is about ln(vocabulary), that of
 * guessing: weights never trained, or taken for another layout, look like this. */
void session_check_first_loss(const session *s, double loss);

#endif
