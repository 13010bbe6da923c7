/* invariants.h: what must hold, whatever happens. The first thing that does not is kept in words
 * (sim.broken), and the schedule ends. */
#ifndef TESSERA_TESTS_SIM_PREPD_INVARIANTS_H
#define TESSERA_TESTS_SIM_PREPD_INVARIANTS_H

#include "tests/sim/prepd/sim.h"
#include "tests/sim/prepd/sim_row.h"

void sim_break(simulation *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* After every event: leases, slots, credit and records are where they should be, and nobody is
 * blamed who is not to blame. */
void check_daemon(simulation *sim, const sim_daemon *daemon);

/* Whether a worker has in work what it answers now; then one that breaks the protocol must go. */
bool check_is_at_work(const simulation *sim, const sim_daemon *daemon, const sim_link *link);
void check_has_gone(simulation *sim, const sim_daemon *daemon, const sim_link *link);

/* A row goes out: never more bytes under way than the rank has granted, or a single row. */
void check_credit(simulation *sim, const sim_daemon *from, const wire_peer *to, int64_t bytes);
/* A row has come: it is the one that must come next, and holds what the plan says. */
void check_row(simulation *sim, int rank, uint64_t number, const sim_row *row);
/* The tag of every row is true, also of one whose worker says something else. */
void check_tag(simulation *sim, int rank, uint64_t number, const sim_row *row);
void check_welcome(simulation *sim, int rank, const json_value *said);
void check_end_of_stream(simulation *sim, int rank, const json_value *said);
/* An index is complete: it is the one that honest workers make. */
void check_index(simulation *sim, int which, const data_index *index);
/* A worker or consumer is refused: it must have deserved it. */
void check_refusal(simulation *sim, const sim_worker *worker, status why);
void check_consumer_refusal(simulation *sim, int rank, status why);
/* A daemon ends: not by a failure. */
void check_end(simulation *sim, const sim_daemon *daemon);
/* The schedule should be over. */
void check_deadline(simulation *sim);

#endif
