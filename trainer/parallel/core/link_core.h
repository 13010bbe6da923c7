/* SPDX-License-Identifier: Apache-2.0 */
/* link_core.h: what a rank decides about the other ranks: who may join, when it says where it is,
 * which rank is lost and how, how it leaves. rank_link.h has the meaning of it all.
 *
 * The core is a machine without a world. It takes events (a connection, bytes, a connection that is
 * gone, the time, the end of this rank's work) and answers with actions. It calls no socket, no
 * clock and no process, so that tests/sim/ranks can play it in virtual time. The shell around it is
 * rank_link.c.
 *
 * Each event is one call, after which the shell takes the actions by link_core_next, in order,
 * until there is none. Texts and bytes of an action are valid until the next event. The shell
 * numbers connections as it likes, from 0 up, below link_core_connections; a number is free again
 * after LINK_CLOSE. Everything here belongs to one thread at a time. */
#ifndef TESSERA_TRAINER_PARALLEL_CORE_LINK_CORE_H
#define TESSERA_TRAINER_PARALLEL_CORE_LINK_CORE_H

#include <stdbool.h>

#include "trainer/parallel/core/rank_link_frame.h"

/* LINK_STRANGERS: how many connections there may be besides those of the ranks. LINK_GRACE_S: how
 * long the work of a process may take to end once the job is over. */
enum { CONTROL_HOST_MAX = 128, LINK_STRANGERS = 64, LINK_GRACE_S = 5 };
/* LINK_NEEDS: how many numbers a rank says of what its micro-batch needs. */
enum { LINK_NEEDS = 4 };

typedef struct link_core link_core;

/* What a rank knows at its start. */
typedef struct link_terms {
    rank_link_hello me;  /* copied */
    const char *at_host; /* of rank 0, as the others reach it; copied */
    int at_port;
    double timeout_s; /* for all ranks to come */
    double silence_s; /* after which a rank that says nothing is lost */
    bool one_machine; /* all ranks are here, so one of them is enough to print a shared error */
    const void *id;   /* [CONTROL_ID_BYTES] what rank 0 gives to the others; copied */
} link_terms;

/* How things are when an event is given. */
typedef struct link_now {
    int64_t ns;      /* monotonic */
    bool waits;      /* this rank waits for something besides its collectives */
    bool held;       /* this rank waits for the others: in a call, or for its device */
    bool began;      /* this rank has begun its first step */
    int64_t call_ns; /* how long ranks may take to agree on a shape */
} link_now;

typedef enum link_action_kind {
    LINK_CONNECT, /* reach rank 0 before until_ns,
                   * then give link_core_connected or _not_connected */
    LINK_SEND,    /* bytes [size] as one message of kind `message` */
    LINK_SEND_AT, /* the same; its text is where this rank is, which the shell knows. It may be left
                     out if earlier bytes are still unsent */
    LINK_FINISH,  /* send what there is and end our direction;
                   * the other end's bytes are not needed */
    LINK_CLOSE,   /* close the connection */
    LINK_WARN,    /* log `text` */
    LINK_NOTE,    /* on rank 0: `rank` says `text` */
    LINK_AGREED,  /* bytes [LINK_NEEDS]: the answer to link_core_need */
    LINK_JOINED,  /* all ranks are here; bytes [CONTROL_ID_BYTES] is the id */
    LINK_FAILED,  /* joining has failed: code and text. Nothing comes after it */
    LINK_ENDS,    /* the job ends: text is the cause, to be logged with this rank's place if `say`;
                     if `hush`, in the log's file alone */
    LINK_EXIT,    /* this rank's work does not end: the process must. If `say`, text is printed */
    LINK_LEFT     /* this rank has left. Nothing comes after it */
} link_action_kind;

typedef struct link_action {
    link_action_kind kind;
    int conn, rank;
    rank_link_kind message;
    const void *bytes;
    size_t size;
    int64_t until_ns;
    status code;
    const char *text;
    bool say, hush;
} link_action;

/* Makes the core of a rank. Its first event should be link_core_time. ST_CONFIG if the options are
 * longer than ranks can exchange. */
WARN_UNUSED status link_core_new(const link_terms *terms, link_now now, link_core **out);
void link_core_free(link_core **core); /* accepts a pointer to NULL */

/* ---- events ---- */

/* Time has passed; to be given at link_core_due at the latest. */
void link_core_time(link_core *core, link_now now);
/* Rank 0: someone has connected. Another rank: rank 0 is reached. */
void link_core_connected(link_core *core, link_now now, int conn);
/* Rank 0 was not reached; why as in strerror. */
void link_core_not_connected(link_core *core, link_now now, const char *why);
void link_core_bytes(link_core *core, link_now now, int conn, const void *bytes, size_t size);
/* why, as in strerror; NULL: the other end has closed the connection, as the system does for a
 * process that ends. */
void link_core_gone(link_core *core, link_now now, int conn, const char *why);
/* Asks all ranks, which all do, for the largest of each of these numbers. The next question may
 * follow LINK_AGREED. */
void link_core_need(link_core *core, link_now now, const uint8_t need[LINK_NEEDS]);
/* Tells rank 0 this text. */
void link_core_tell(link_core *core, link_now now, const char *text);
/* Calls of this rank have not ended in time, so its work is about to fail: why. Rank 0 ends the job
 * by the name of whoever keeps the others waiting, if it can know. */
void link_core_late(link_core *core, link_now now, const char *why);
/* This rank's work has ended. failed: what happened to it; NULL: it went well. */
void link_core_leave(link_core *core, link_now now, const char *failed);

/* ---- answers ---- */

/* The next action; false: there is none until the next event. */
bool link_core_next(link_core *core, link_action *out);
/* When the next link_core_time is due. */
int64_t link_core_due(const link_core *core);
/* How many connections there can be at a time. */
int link_core_connections(const link_core *core);
/* Whether another rank waits for something. */
bool link_core_others_wait(const link_core *core);

/* The last line of a rank that ends with the failure `failed`. Before the first step all ranks of
 * one machine fail alike: rank 0 prints the cause, the others print nothing. */
typedef struct link_last_line {
    bool hush;       /* this rank prints nothing */
    const char *say; /* a cause that this rank prints besides its own; NULL: none */
} link_last_line;
link_last_line link_core_last_line(const link_core *core, bool began, const char *failed);

#endif
