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
void rank_go_on(simulation *sim, int number, int64_t after_ns);

#endif
