/* SPDX-License-Identifier: Apache-2.0 */
/* link_state.h: the inside of link_core.h, for its own files. */
#ifndef TESSERA_TRAINER_PARALLEL_CORE_LINK_STATE_H
#define TESSERA_TRAINER_PARALLEL_CORE_LINK_STATE_H

#include "trainer/parallel/core/link_core.h"

/* HELLO_NS: how long a process that has connected may take to say who it is, and one that is
 * refused to hang up. LAST_WORD_NS: how long a rank waits for its last word to be received. */
#define HELLO_NS     (INT64_C(2) * 1000 * 1000 * 1000)
#define LAST_WORD_NS (INT64_C(2) * 1000 * 1000 * 1000)

typedef enum link_phase {
    LINK_MEETING, /* the ranks come */
    LINK_FAILING, /* rank 0 tells those that came why the job cannot run */
    LINK_RUNNING, /* until it has left */
    LINK_OUT      /* nothing follows */
} link_phase;

typedef enum link_conn_state {
    CONN_NONE,   /* a free number */
    CONN_NEW,    /* has not said who it is */
    CONN_PEER,   /* belongs to a rank */
    CONN_REFUSED /* was told why and is to hang up */
} link_conn_state;

typedef struct link_conn {
    link_conn_state state;
    int peer;         /* its index, of CONN_PEER */
    int64_t until_ns; /* of CONN_NEW and CONN_REFUSED */
    uint8_t *in;      /* [capacity] bytes that are not yet a whole message */
    size_t n_in, capacity;
} link_conn;

/* Another rank: on rank 0 all of them in order, on the others rank 0 alone. */
typedef struct link_peer {
    int conn; /* -1: there is no connection */
    int rank, pid;
    char host[CONTROL_HOST_MAX];
    int64_t heard_ns;                 /* when it was last heard */
    int64_t gap_ns, gap_until_ns;     /* its last long silence, and when that ended; 0: none */
    char place[CONTROL_TEXT_MAX + 1]; /* where it said it is */
    bool waits; /* it waits for something, or rank 0 says that another rank does */
    bool held;  /* it waits for the other ranks */
    bool said;  /* what it needs of the micro-batch in question; on rank 0 */
} link_peer;

struct link_core {
    int rank, size;
    uint8_t *hello; /* [hello_size] this rank's own, whose texts `me` points to */
    size_t hello_size;
    rank_link_hello me;
    char at_host[CONTROL_HOST_MAX];
    int at_port;
    int64_t timeout_ns, silence_ns, beat_ns;
    bool one_machine;
    uint8_t id[CONTROL_ID_BYTES];

    link_phase phase;
    link_now now;
    int64_t deadline_ns; /* of joining */
    bool last_call;      /* rank 0's deadline was put off once */
    int64_t retry_ns;    /* when rank 0 is tried again; INT64_MAX: not now */
    int here;            /* how many ranks have come */
    status code;         /* why joining failed, with `why` */
    char why[1024];

    link_peer *peer; /* [n_peers] */
    int n_peers;
    link_conn *conn; /* [n_conns] */
    int n_conns;
    int64_t next_beat_ns;
    int64_t round_ns;       /* the last event */
    int64_t idle_ns;        /* from the event before to this one */
    int64_t still_ns;       /* how long this process was stopped the last time */
    int64_t still_until_ns; /* when it went on */
    bool still_met;         /* that was while ranks met */
    bool leaving;
    bool refused;        /* the job ended before its first step by what a rank said of itself */
    int64_t leave_by_ns; /* until when this rank waits for its last word to be received */
    int64_t over_ns;     /* when the job ended */
    bool over, exited;   /* lost is written; the process was told to end */
    char failed[CONTROL_TEXT_MAX]; /* what happened to this rank; "": nothing */
    char lost[CONTROL_TEXT_MAX];   /* which rank ended the job and how */

    int64_t shapes;                /* micro-batches whose shape was agreed on */
    uint8_t need[LINK_NEEDS];      /* the largest that was heard of the one in question */
    int64_t need_until_ns;         /* when all must have said theirs, once one has; on rank 0 */
    int needs;                     /* how many ranks have said theirs; on rank 0 */
    bool asks;                     /* this rank has said its own and waits for the answer */
    uint8_t agreed[LINK_NEEDS];    /* the last answer */
    uint8_t shape[8 + LINK_NEEDS]; /* the last message about it */

    link_action *action; /* [action_room] answers to the last event; the first `taken` are taken */
    int n_actions, taken, action_room;
    char **kept; /* [n_kept] texts of these actions */
    int n_kept;
};

/* ---- link_answer.c ---- */

/* Begins an event: forgets the last one's answers. */
void link_begin(link_core *core, link_now now);
void link_answer(link_core *core, link_action action);
/* A copy of a text that lives as long as the answers. */
const char *link_keep(link_core *core, const char *text);
void link_send(link_core *core, int conn, rank_link_kind kind, const void *bytes, size_t size);
/* Forgets a connection and closes it. */
void link_drop(link_core *core, int conn);
/* Whether a rank other than the peer `but` waits for something. */
bool link_peers_wait(const link_core *core, const link_peer *but);
/* Whether this peer was heard as lately as one that can be heard is. */
bool link_is_heard(const link_core *core, const link_peer *peer);
/* Tells whoever is at this connection why it is refused, and waits for it to hang up. */
void link_refuse(link_core *core, int conn, const char *why);

/* ---- link_loss.c: losses in the phase LINK_RUNNING ---- */

/* Notes that this peer is heard. */
void loss_hear(link_core *core, link_peer *peer);
/* The connection of this peer can no longer be used; how says why,
 * in words that follow its name. */
void loss_of_peer(link_core *core, const link_peer *peer, const char *how);
/* Looks for peers that have been silent for too long. */
void loss_by_silence(link_core *core);
/* Rank 0: some ranks have not said what they need of the micro-batch, though they can be heard. */
void loss_by_absence(link_core *core);
/* Rank 0: calls of this peer (NULL: of this rank) have not ended in time, in its words `failed`.
 * Ends the job, by the name of whoever keeps the others waiting if that is known. */
void loss_by_delay(link_core *core, const link_peer *late, const char *failed);
/* A peer says why the job ends. of_me: because this rank was silent. */
void loss_told(link_core *core, link_peer *peer, const char *text, bool of_me);

/* ---- link_shape.c ---- */

void shape_ask(link_core *core, const uint8_t need[LINK_NEEDS]);
/* Ends the job, on rank 0, where ranks have not said what they need for too long. */
void shape_time(link_core *core);
int64_t shape_due(const link_core *core);
/* A message of kind CONTROL_SHAPE. False: it breaks the protocol. */
bool shape_message(link_core *core, link_peer *peer, const uint8_t *bytes, size_t size);

/* ---- link_join.c: the phases LINK_MEETING and LINK_FAILING ---- */

void join_time(link_core *core);
void join_connected(link_core *core, int conn);
/* A whole message while ranks meet, from a connection of any state. */
void join_message(link_core *core, int conn, rank_link_kind kind, const uint8_t *bytes,
                  size_t size);
/* A connection that is gone, or whose bytes are no message: the failure is the last note. */
void join_lost(link_core *core, int conn, status code);
int64_t join_due(const link_core *core);

#endif
