/* SPDX-License-Identifier: Apache-2.0 */
/* rank_link.h: the ranks of a job watch each other over TCP, whatever engine carries their
 * collectives. Rank 0 holds a connection to each of the others. In every process a separate thread
 * listens, and periodically reports where its rank is.
 *
 * A rank is lost when its connection ends without a BYE (the process died), when it says nothing
 * for silence_s (it is stopped or cut off), or when it says itself that it failed. All other ranks
 * are then told which rank it was and where it was: its step, call, layer, group and sample ids.
 * Each of them logs that together with its own place, and rank_link_check fails from then on; a
 * process that does not leave its work within five seconds is ended with the exit code of
 * ST_UNAVAILABLE. failures.md has a table of what is noticed by whom, and how soon. */
#ifndef TESSERA_TRAINER_PARALLEL_LINK_RANK_LINK_H
#define TESSERA_TRAINER_PARALLEL_LINK_RANK_LINK_H

#include "trainer/parallel/comm/comm_ledger.h"
#include "trainer/parallel/link/rank_link_find.h"

typedef struct rank_link rank_link;
enum { RANK_LINK_NOTE_MAX = CONTROL_TEXT_MAX + 1 }; /* bytes of a note, with its final zero */

typedef struct rank_link_options {
    int rank, size;      /* of this process in the job; how many ranks the job has */
    rank_link_place at;  /* where rank 0 is */
    const char *options; /* of the run, as text; all ranks must have the same. Borrowed */
    double timeout_s;    /* for all ranks to come */
    double silence_s;    /* after which a rank that says nothing is lost */
    comm_ledger *ledger; /* is asked which call the rank is in; borrowed, may be NULL */
    bool one_machine;    /* all ranks are here, so one of them is enough to print a shared error */
} rank_link_options;

/* Meets the other ranks and starts the thread. All ranks call it. id [CONTROL_ID_BYTES]: rank 0
 * gives it to the others, which receive it here. ST_TIMEOUT names the ranks that did not come;
 * ST_CONFIG the difference if the ranks do not belong together (core/link_join.c). */
WARN_UNUSED status rank_link_open(const rank_link_options *options, void *id, rank_link **out);
/* Notes the step that begins and sample [count], the ids of this rank's samples in it, so that
 * messages about this rank can name them. link may be NULL. */
void rank_link_at_step(rank_link *link, int64_t step, const uint64_t *sample, int64_t count);
/* Says what this rank waits for from now on besides its collectives, such as "rows" (static
 * storage); NULL: nothing. The other ranks learn it from the next report, and meanwhile allow their
 * calls more time (comm_join.patient). link may be NULL. */
void rank_link_waits(rank_link *link, const char *what);
/* Says whether this rank waits for the others in a call of the engine, or for its device, which
 * waits for them. Rank 0 learns it from the next report. May be called from any thread. */
void rank_link_held(rank_link *link, bool held);
/* Says that calls of this rank have not ended in time, and why. Rank 0 then ends the job, and names
 * the rank that keeps the others waiting, if that is known. Only the first call counts. May be
 * called from any thread. */
void rank_link_late(rank_link *link, const char *why);
/* Replaces each of these numbers by its maximum over all ranks, all of which call this. Fails like
 * rank_link_check once the job has ended. The job also ends if some ranks have not called within
 * the time that a call may take, counted from the first rank's call and stopped while any rank
 * waits for something; rank 0 then names them. */
WARN_UNUSED status rank_link_agree(rank_link *link, uint8_t inout_need[LINK_NEEDS]);
/* How long rank_link_agree may take; at first that is timeout_s. link may be NULL. */
void rank_link_set_timeout(rank_link *link, double seconds);
/* Sends rank 0 a note, soon, which rank 0 keeps until this rank sends another. The text is copied,
 * at most RANK_LINK_NOTE_MAX bytes of it. link may be NULL, and then nothing is sent. May be called
 * from any thread. */
void rank_link_tell(rank_link *link, const char *note);
/* On rank 0: whether that rank has sent a note; out: the last. May be called from any thread. */
bool rank_link_told(rank_link *link, int rank, char out[RANK_LINK_NOTE_MAX]);
/* Whether this rank waits for something, and whether another one does. Both may be called from any
 * thread. */
bool rank_link_is_waiting(rank_link *link);
bool rank_link_others_wait(rank_link *link);
/* ST_UNAVAILABLE, with the cause, once another rank has ended the job. May be called from any
 * thread. */
WARN_UNUSED status rank_link_check(rank_link *link);
/* Ends the link when this rank's work has ended. failed is NULL if it went well; otherwise it says
 * what happened, and the other ranks are told. Rank 0 waits until the others have left as well.
 * Returns ST_UNAVAILABLE if this rank did well and another was lost. Frees *link; accepts a pointer
 * to NULL. */
WARN_UNUSED status rank_link_close(rank_link **link, const char *failed);

#endif
