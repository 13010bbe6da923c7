/* SPDX-License-Identifier: Apache-2.0 */
/* step_bench.h: what the tests of steps share: a recording, and a session of the debug model that
 * reads it, on the CPU or on an emulated device. */
#ifndef TESSERA_TESTS_UNIT_TRAINER_RUN_STEP_BENCH_H
#define TESSERA_TESTS_UNIT_TRAINER_RUN_STEP_BENCH_H

#include "common/conf/conf.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/run/step.h"

enum { STEPS = 9, ACCUMULATION = 2, LOCAL = 2, SEQ_LEN = 96, PATCHES = 160, ROWS = 6 };

/* The buckets that a daemon would name. The first holds the batches of rows 0, 1 and 4, 5, one of
 * which has a video; the batch of rows 2 and 3 needs the second. */
extern const bucket_list bench_buckets;
extern const bucket_list bench_no_buckets;

typedef struct bench {
    conf options;
    session run;
    backend_vtable fixed; /* the CPU on capacities, as the emulated device is */
} bench;

/* Records rows for the fixture's model in the folder, different ones for each step. Returns the
 * path, which the caller frees. */
char *bench_record(fixture *setup, const char *folder);
/* Records these rows. */
char *bench_record_rows(const row *rows, int count, const char *folder);
/* A recording for the debug model. The two functions are the setup and the teardown of a group of
 * tests, whose *state is a bench_files. */
typedef struct bench_files {
    fixture setup;
    char *folder, *recording;
} bench_files;
int bench_files_open(void **state);
int bench_files_close(void **state);

/* What a bench is opened with. */
typedef struct bench_how {
    int ahead;         /* -1 for the CPU, else as in bench_open */
    const char *scope; /* what is captured, or "none" */
    const bucket_list *list;
    bool in_backward; /* optimizer.in_backward, in steps of one micro-batch */
    double max_norm;
    bool moments_on_host; /* memory.host moments */
    bool frozen;          /* experts, tower and mergers are frozen .. */
    bool frozen_on_host;  /* .. with memory.host frozen */
    const double *share;  /* with in_backward: of the units in earlier steps; NULL: none */
} bench_how;

/* ahead: -1 for the CPU, which runs one step after the other; else the emulated device with that
 * many steps under way. scope: what is captured, or "none". End with session_close. */
void bench_open(bench *setup, const char *recording, int ahead, const char *scope,
                const bucket_list *list);
void bench_open_as(bench *setup, const char *recording, const bench_how *how);

#endif
