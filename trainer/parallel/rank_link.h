/* rank_link.h: the ranks of a job watch each other over TCP, whatever engine carries their
 * collectives. Rank 0 holds a connection to each of the others; a thread of its own in every
 * process says once in a while where its rank is, and listens.
 *
 * A rank is lost when its connection ends without a BYE (the process died), when it says nothing
 * for silence_s (stopped, or cut off), or when it says itself that it failed. Then all others are
 * told whose fault it was and where that rank was: its step, call, layer, group and sample ids.
 * Each logs it with its own place, rank_link_check fails from there on, and a process that does not
 * get out of its work within a few seconds is ended, with the exit code of ST_UNAVAILABLE. */
#ifndef TESSERA_TRAINER_PARALLEL_RANK_LINK_H
#define TESSERA_TRAINER_PARALLEL_RANK_LINK_H

#include "trainer/parallel/comm_ledger.h"
#include "trainer/parallel/rank_link_join.h"

typedef struct rank_link rank_link;

typedef struct rank_link_options {
    int rank, size;
    rank_link_place at;  /* of rank 0 */
    const char *options; /* of the run, as text; all ranks must have the same. Borrowed. */
    double timeout_s;    /* for all to come */
    double silence_s;
    comm_ledger *ledger; /* asked where the rank is; borrowed */
    bool one_machine;    /* of all ranks: what rank 0 says is seen where the others' words are */
} rank_link_options;

/* All ranks call it. id [CONTROL_ID_BYTES]: of rank 0 it is read, of the others written. */
WARN_UNUSED status rank_link_open(const rank_link_options *o, void *id, rank_link **out);
/* The step under way and its samples, for what is said of this rank. */
void rank_link_at_step(rank_link *c, int64_t step, const uint64_t *sample, int64_t n);
/* What this rank waits for from here on beside its calls ("rows"; static storage), NULL: nothing
 * any more; the others hear it with the next beat, so that their calls wait as long
 * (comm_join.patient). c may be NULL. */
void rank_link_waits(rank_link *c, const char *what);
/* Does it, does another rank? Any thread. */
bool rank_link_is_waiting(rank_link *c);
bool rank_link_others_wait(rank_link *c);
/* ST_UNAVAILABLE with the words once the job is over by another rank's fault. Any thread. */
WARN_UNUSED status rank_link_check(rank_link *c);
/* This rank's work has ended: failed NULL, or what happened to it, which the others are told. Rank
 * 0 stays until the others have left too; ST_UNAVAILABLE where one of them was lost. Frees. */
WARN_UNUSED status rank_link_close(rank_link **c, const char *failed);

#endif
