/* SPDX-License-Identifier: Apache-2.0 */
/* sim_data.h: a data set that exists only as a function of a seed: which pictures each sample
 * shows, how long its text is, and what is wrong with it. The dispatcher sees it through the vtable
 * of dataset.h; simulated workers find in it what they would find in the files; the reference
 * (expected.h) finds in it what the index and the rows must be.
 *
 * Nothing of prepd/serve is used here. */
#ifndef TESSERA_TESTS_SIM_PREPD_SIM_DATA_H
#define TESSERA_TESTS_SIM_PREPD_SIM_DATA_H

#include "prepd/dataset/dataset.h"
#include "prepd/plan/index.h"
#include "tests/sim/common/sim_random.h"

/* What happens to a worker that reads a picture. All of it holds for every worker; what rows alone
 * meet, only from a certain time on (sim_picture.bad_from_ns). */
typedef enum picture_fate {
    PICTURE_FINE,
    PICTURE_BAD_HEADER,   /* the index refuses it */
    PICTURE_KILLS_HEADER, /* its header ends the worker, so the index refuses it */
    PICTURE_NOT_THERE,    /* there is no such file, so the index refuses it */
    PICTURE_FAILS,        /* its header is fine, and decoding it fails */
    PICTURE_VANISHES,     /* its file is there for the index and gone when rows are made */
    PICTURE_CHANGES,      /* it has another size when rows are made */
    PICTURE_KILLS,        /* decoding it ends the worker */
    PICTURE_HANGS,        /* decoding it takes longer than prepd.sample_timeout */
    PICTURE_TROUBLE,      /* none of a picture's own: it could not be read for sending it */
} picture_fate;

typedef enum text_fate {
    TEXT_FINE,
    TEXT_NOT_ADAPTED, /* the adapter refuses the sample */
    TEXT_REFUSED,     /* encoding it fails, so the index refuses it */
    TEXT_KILLS,       /* encoding it ends the worker, so the index refuses it */
} text_fate;

typedef struct sim_picture {
    char name[16];
    int32_t width, height;
    int32_t frames, fps; /* of a clip, which is a folder of frames; 0: a still picture */
    int64_t bytes, mtime_ns;
    picture_fate fate;
    int64_t bad_from_ns; /* before, rows find it as the index did */
} sim_picture;

enum { MOST_SHOWN = 2, MOST_TURN_PARTS = MOST_SHOWN + 1, MOST_SOURCES = 3 };

/* One source of a mixture: a run of the samples, and a run of the pictures,
 * which no other shows. */
typedef struct sim_source {
    int64_t first, count, first_picture, n_pictures;
} sim_source;

typedef struct sim_sample {
    int32_t shows[MOST_SHOWN]; /* [n_shown] pictures */
    int32_t n_shown;
    bool plain;
    int system; /* 0: none; otherwise which of two system prompts it begins with */
    text_fate fate;
    index_sample record;    /* its cause is set where the index refuses it */
    index_beginning begins; /* zeros unless the data set has beginnings */
    char question[24], answer[24], name[16];
    char judged_by[40]; /* what its answer is judged by, as JSON; "" if there is nothing */
    part parts[MOST_TURN_PARTS + 1];
    part told[1]; /* of the system prompt */
    turn turns[3];
    int32_t n_turns;
} sim_sample;

typedef struct sim_data {
    dataset base;
    uint64_t seed;
    bool begins;          /* data.group shared_prefix */
    bool videos;          /* some clips are files, for which workers need another decoder */
    sim_picture *picture; /* [n_pictures] */
    sim_sample *sample;   /* [n_samples] */
    int64_t n_pictures, n_samples;
    int64_t piece_samples; /* samples of one piece of a file; 0: any can be read at any time */
    int n_sources;         /* 1: the data set is no mixture */
    sim_source source[MOST_SOURCES];
    dataset_part part[MOST_SOURCES]; /* the same for the plan, with names and weights */
    hash128 identity, contents;      /* as those of dataset.h */
} sim_data;

/* How a data set is made. Chances are in one thousand. */
typedef struct sim_data_rules {
    int64_t n_pictures, n_samples, piece_samples;
    int n_sources;            /* below 2: the data set is no mixture */
    int weight[MOST_SOURCES]; /* of the sources; all 0: each sample once an epoch */
    bool begins, videos;
    int32_t common_text; /* tokens that texts without a picture begin with alike */
    int32_t longest_text;
    int bad_header, kills_header, not_there, fails, vanishes, changes, kills, hangs; /* pictures */
    int clips; /* of pictures */
    int later; /* of the pictures that fail, vanish or change: while rows are being made */
    int not_adapted, refused, text_kills, plain, without_picture; /* of samples */
} sim_data_rules;

/* The pictures that were not there are there from now on. False if there are none such. */
bool sim_data_appear(sim_data *data);

/* Makes the data set. Ends the process if there is no memory. */
void sim_data_init(sim_data *out, const sim_data_rules *rules, uint64_t seed);
void sim_data_done(sim_data *data);

/* The source and the piece of a file that a sample is in. */
sample_place sim_data_place(const sim_data *data, int64_t number);

/* What a row that is made at this time finds of a picture. */
picture_fate sim_data_fate_at(const sim_picture *picture, int64_t at_ns);
/* Whether sample `number` cannot be part of a row that is made at this time: a picture of it cannot
 * be decoded. Such a sample belongs into quarantine, and no other does. Whatever is bad stays bad.
 */
bool sim_data_is_bad(const sim_data *data, int64_t number, int64_t at_ns);
/* The picture's record as an honest worker finds it. */
index_image sim_data_picture_record(const sim_data *data, int64_t picture);

/* Whether the index refuses a clip that the sample shows, so that its text is not looked at. */
bool sim_data_has_bad_clip(const sim_data *data, int64_t number);

/* A hash of what a sample says: the roles, texts and places of pictures of its turns. */
uint64_t sim_data_turns_hash(const sim_data *data, int64_t number);

#endif
