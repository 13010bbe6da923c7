/* SPDX-License-Identifier: Apache-2.0 */
/* sim_readers.h: the ranks that read streams, and the jobs that they belong to. */
#ifndef TESSERA_TESTS_SIM_PREPD_SIM_READERS_H
#define TESSERA_TESTS_SIM_PREPD_SIM_READERS_H

#include "proto/row/bad_samples.h"
#include "proto/row/row_order.h"
#include "tests/sim/prepd/expected.h"

typedef enum rank_state {
    RANK_AWAY,
    RANK_GREETING,
    RANK_READING,
    RANK_ENDED,
    RANK_GONE
} rank_state;

enum { KEPT_CURSORS = 64, HELD_ROWS = 64 };

/* Whose cursor a rank comes with. */
typedef enum cursor_kind {
    CURSOR_NONE,
    CURSOR_OWN,
    CURSOR_OTHER_WEIGHTS, /* of the same data in another mixture */
    CURSOR_OTHER_DATA,
} cursor_kind;

/* One consumer of a job. */
typedef struct sim_rank {
    int job, rank, daemon, link, turn;
    rank_state state;
    bool astray;           /* it asks a daemon that does not serve it */
    cursor_kind brings;    /* what it has said in HELLO */
    int64_t hold_until_ns; /* until then it gives no credit back */
    bool refuses;          /* it has refused a row */
    uint64_t refused_row;  /* the last that it refused */
    int refused_by;        /* 1 more than the supervisor of its maker; 0: of no other machine */
    int refused_link, refused_life; /* its daemon, and that one's life */
    uint64_t next;                  /* the row that must come next, if any is left */
    uint64_t cursor_row;            /* to which its cursor leads */
    bool any_left;
    char *cursor; /* of the last row that it took; owned; NULL: none */
    int64_t credit, under_way, granted_back;
    int64_t held[HELD_ROWS]; /* bytes of rows that it has not given back yet */
    int n_held;
    uint64_t rows;
    int64_t asked_ns; /* when it sent HELLO */
    struct {
        uint64_t step;
        char *cursor; /* owned; after its last row of that step */
    } steps[KEPT_CURSORS];
    uint64_t done_steps; /* steps below this one are complete here */
    bad_samples heard;   /* what its rows said of their bad samples */
    row_order order;     /* with real rows: as a real consumer keeps it */
} sim_rank;

/* A job of several ranks that read one stream together. */
typedef struct sim_stream_job {
    const char *stream; /* "train", "eval" or "sample" */
    reference *rows;
    int ranks, first; /* its ranks are first .. first + ranks - 1 */
    int lives;
    uint64_t begin;      /* the row at which its present life began */
    char *cursor;        /* with which it began; owned; NULL: at the start of the stream */
    bad_samples told;    /* the bad samples that its ranks bring */
    bad_samples made_up; /* those of them with which nothing is wrong, most likely */
    int n_reading;       /* its ranks that have not come to the end */
    int again;           /* how often it will start over */
    bool refuses;        /* its ranks refuse good rows */
    int64_t life_rows;   /* after so many of a rank it does so; otherwise at the end */
    uint8_t *taken; /* [rows->n_rows] how often each row was taken; owned; NULL for a stream without
                       end */
} sim_stream_job;

#endif
