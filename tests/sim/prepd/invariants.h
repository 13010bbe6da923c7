/* SPDX-License-Identifier: Apache-2.0 */
/* invariants.h: what must hold, whatever happens. The first thing that does not is kept in words
 * (sim.broken), after the name of the invariant, and the schedule ends. */
#ifndef TESSERA_TESTS_SIM_PREPD_INVARIANTS_H
#define TESSERA_TESTS_SIM_PREPD_INVARIANTS_H

#include "tests/sim/prepd/sim.h"
#include "tests/sim/prepd/sim_row.h"

/* INVARIANTS(X): each with its name, and what it says. */
#define INVARIANTS(X)                                                                              \
    X(INV_ROWS, "rows", "a row is what the plan alone says of it")                                 \
    X(INV_ORDER, "order", "a rank gets its rows once each, in the stream's order, then the end")   \
    X(INV_CURSORS, "cursors", "a cursor leads to the row that must follow")                        \
    X(INV_TAGS, "tags", "the tag of a row is true")                                                \
    X(INV_INDEX, "index", "an index is the one that honest workers make")                          \
    X(INV_HEALTHY, "healthy", "nothing is blamed that can be decoded")                             \
    X(INV_POISON, "poison", "what kills its workers is found within its limit of tries")           \
    X(INV_LEASES, "leases", "each piece of work is in one place")                                  \
    X(INV_ANSWERS, "answers", "a lease has one answer, and a late one changes nothing")            \
    X(INV_CREDIT, "credit", "no more bytes are under way than were granted, or one row")           \
    X(INV_MEMORY, "memory", "what the core keeps is bounded, and it frees all of it")              \
    X(INV_PROCESSES, "processes", "the core ends and counts its own children alone")               \
    X(INV_ROLES, "roles", "a peer gets nothing for which it has no role")                          \
    X(INV_PROVED, "proved", "only workers that proved what they are have work")                    \
    X(INV_AUDIT, "audit", "no lie gets through where all rows are made twice")                     \
    X(INV_DEVIANT, "deviant", "who lies or differs is sent away, named, for that reason")          \
    X(INV_TWINS, "twins", "of two consumers of one rank of a run, the one that is there stays")    \
    X(INV_HONEST, "honest", "an honest worker or consumer is not refused")                         \
    X(INV_WIRE, "wire", "what the core sends can be read, and is for whom it is sent to")          \
    X(INV_WORDS, "words", "what operators are told is true")                                       \
    X(INV_FILES, "files", "a lease brings the files that it names, to workers without a copy")     \
    X(INV_DRAIN, "drain", "a daemon that is drained or stopped ends in time")                      \
    X(INV_GOES_ON, "goes on", "with an honest worker every row comes within bounded time")         \
    X(INV_GIVES_UP, "gives up", "a daemon that can never work says why, and ends")

typedef enum invariant {
#define INVARIANT_ENUM(name, word, says) name,
    INVARIANTS(INVARIANT_ENUM)
#undef INVARIANT_ENUM
        N_INVARIANTS
} invariant;

void sim_break(simulation *sim, invariant which, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* After every event: leases, slots, credit and records are where they should be, and nobody is
 * blamed who is not to blame. */
void check_daemon(simulation *sim, sim_daemon *daemon);

/* Whether a worker has in work what it answers now; then one that breaks the protocol must go. What
 * it tells of a row whose consumer has left need not be read: it is no longer known what is in it.
 */
bool check_is_at_work(const simulation *sim, const sim_daemon *daemon, const sim_link *link,
                      const wire_msg *message);
/* A worker is sent a lease: it has proved what it is, under the terms of now. */
void check_may_work(simulation *sim, const sim_daemon *daemon, const sim_link *link);
void check_has_gone(simulation *sim, const sim_daemon *daemon, const sim_link *link);

/* A lease goes out: what files are under way with others does not exceed prepd.ship_bytes. */
void check_files_under_way(simulation *sim, sim_daemon *daemon, uint64_t lease_number,
                           const wire_msg *message);
/* A row goes out: never more bytes under way than the rank has granted, or a single row. */
void check_credit(simulation *sim, const sim_daemon *from, const wire_peer *to, int64_t bytes);
/* A row has come: it is the one that must come next, and holds what the plan says. */
void check_row(simulation *sim, int rank, uint64_t number, const sim_row *row);
/* The tag of every row is true, also of one whose worker says something else. */
void check_tag(simulation *sim, int rank, uint64_t number, const sim_row *row);
/* A rank has come to the end of a step: its cursor is that of the other ranks. */
void check_step_cursor(simulation *sim, int rank, uint64_t step);
/* Whether the ranks of a job have brought this sample; and whether it was made up. */
bool job_was_told(const sim_stream_job *job, int64_t id);
bool job_made_up(const sim_stream_job *job, int64_t id);
void check_welcome(simulation *sim, int rank, const json_value *said);
void check_end_of_stream(simulation *sim, int rank, const json_value *said);
/* A rank has come to the end. Once all have, each row of the stream was taken by one of them. */
void check_union(simulation *sim, const sim_rank *rank);
/* An index is complete: it is the one that honest workers make. */
void check_index(simulation *sim, int which, const data_index *index);
/* A worker or consumer is refused: it must have deserved it. */
void check_refusal(simulation *sim, const sim_worker *worker, status why);
/* A worker is told to stay away for a while: its key, or its address, has deserved it. */
void check_wait(simulation *sim, const sim_worker *worker, const char *why);
void check_consumer_refusal(simulation *sim, int rank, status why);
/* A daemon ends: not by a failure. */
void check_end(simulation *sim, const sim_daemon *daemon);
/* The core sends a message: what it says to people is true (word_checks.c). */
void check_words(simulation *sim, const sim_daemon *daemon, const wire_peer *to,
                 const wire_msg *message, const frame *head);
/* A daemon is about to hear that a local worker has ended (poison_checks.c). */
void check_death(simulation *sim, const sim_daemon *daemon, const sim_worker *worker);
/* Parts of check_daemon: lease_checks.c, memory_checks.c, gone_checks.c. */
void check_leases(simulation *sim, const dispatch *state);
/* A rank refuses a row, whose tag says who made it; it takes the row that was made again: something
 * holds against the maker's key, since the row was wrong, or may have been. */
void note_refused(simulation *sim, sim_rank *rank, uint64_t row, const json_value *tag);
void check_found_out(simulation *sim, sim_rank *rank, uint64_t row);
void check_accounts(simulation *sim, const dispatch *state); /* trust_checks.c */
void check_memory(simulation *sim, sim_daemon *daemon);
void check_gone(simulation *sim, sim_daemon *daemon);
/* The world is taken apart: nothing is left of the blocks of memory that it took. */
void check_memory_is_back(simulation *sim, int64_t blocks_before);
/* The schedule should be over. */
void check_deadline(simulation *sim);

#endif
