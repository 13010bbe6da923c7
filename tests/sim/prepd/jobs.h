/* SPDX-License-Identifier: Apache-2.0 */
/* jobs.h: what the files of a job and its ranks share. */
#ifndef TESSERA_TESTS_SIM_PREPD_JOBS_H
#define TESSERA_TESTS_SIM_PREPD_JOBS_H

#include "tests/sim/prepd/sim.h"

/* The rank comes with its job's cursor and must be given the rows from `from` on. */
void rank_begin(simulation *sim, int number, uint64_t from);
/* Finds the row that the rank must be given next, from row `from` on. */
void rank_find_next(simulation *sim, sim_rank *rank, uint64_t from);
/* A row has come. */
void rank_take_row(simulation *sim, int number, const wire_msg *message, const frame *head);
/* --- job_lists.c: what ranks know of bad samples --- */
/* A row lists these. */
void rank_hear(simulation *sim, int number, uint64_t row, const char *list);
/* The job is about to start again: what all of its ranks have heard becomes job->told. */
void job_unite(simulation *sim, sim_stream_job *job);
/* Writes HELLO's list, as programs of now or earlier ones do. */
void job_put_told(const sim_stream_job *job, bool earlier, json_writer *writer);

/* --- other_cursors.c --- */
/* Makes a cursor of other weights or other data from a rank's own; owned. Without weights it is of
 * other data. */
char *other_cursor(const char *cursor, cursor_kind *inout_kind);
/* A rank is refused. True if that is for such a cursor, which has been judged. */
bool check_other_cursor(simulation *sim, int rank, status why);

/* --- other_data.c --- */
/* A rank is welcomed, or refused. True if its data have changed, which has been judged. */
bool check_welcome_to_other(simulation *sim, int rank);
bool check_other_data(simulation *sim, int rank, status why);

/* The job reads its stream once more, from the first row. */
void job_start_over(simulation *sim, int number);

void rank_go_on(simulation *sim, int number, int64_t after_ns);

#endif
