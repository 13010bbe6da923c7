/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: what the files share that do a simulated worker's leases. */
#ifndef TESSERA_TESTS_SIM_PREPD_WORK_H
#define TESSERA_TESTS_SIM_PREPD_WORK_H

#include "tests/sim/prepd/sim.h"
#include "tests/sim/prepd/sim_row.h"

/* The data set that a lease is about. */
const sim_data *job_data(const simulation *sim, const sim_job *job);

/* --- work_files.c --- */
/* Whether the worker's machine lacks a picture that the daemon has. */
bool lacks_picture(const simulation *sim, const sim_worker *worker, int64_t picture);
/* What reading the header of picture `nth` of an index lease does to the worker: nothing, or
 * NOT_THERE, KILLS_HEADER, TROUBLE. */
picture_fate header_fate(simulation *sim, const sim_worker *worker, int64_t nth);
/* What decoding the pictures of a document does to its worker: the first that is not fine, which is
 * *out_picture. */
picture_fate doc_fate(simulation *sim, const sim_worker *worker, const json_value *doc,
                      int64_t *out_picture);
/* When the files of a lease are read, at the earliest: when the daemon did,
 * if they came with it. */
int64_t work_files_read_ns(const wire_msg *files, const json_value *told, int64_t now_ns);
/* Parts at the end of a lease's message that are rows of others, with which its own is compared. */
size_t work_compared_parts(const json_value *told);
/* Whether the file of a picture is not there, or is another than the index says. */
bool is_missing(picture_fate fate);

/* --- work.c --- */
void work_forget(sim_job *job); /* what its lease says; nothing is looked up in it any more */
/* --- work_lies.c: what one says that lies; others say what is true --- */
/* A number of a record: of an item of the index. */
int64_t lie_record(simulation *sim, const sim_worker *worker, int64_t item, int64_t value);
/* The item of its lease at which it says to be: any, the next, or the true one. */
int64_t lie_item(simulation *sim, const sim_job *job);
/* How the worker changes this row. */
row_lie lie_row(simulation *sim, const sim_worker *worker);
/* The place of a good document that it calls bad; -1: of none. */
int64_t lie_failure(simulation *sim, const sim_worker *worker);

/* All items are done: answers by ROW, RECORDS or FAILED. */
void work_answer(simulation *sim, int number);
/* The answer to a row lease; says FAILED for the documents that cannot be made. False if a row that
 * came with the lease ends the worker. */
bool work_answer_row(simulation *sim, const sim_worker *worker);
bool work_answer_failures(simulation *sim, const sim_worker *worker); /* false: none */
/* Answers by something that no worker sends. */
void work_breach(simulation *sim, int number);

#endif
