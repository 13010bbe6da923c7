/* lease.h: what becomes of a piece of work whose worker goes: pure state, no sockets, no clock.
 *
 * A lease is a list of items (samples of a row, images or texts of the index) that one worker does
 * at a time. It is given again when its worker goes. One lost twice by the worker's own doing goes
 * solo: the item last reported in work is tried alone in a fresh worker; if that was harmless, or
 * unknown, the next time each item is. One that kills its worker alone `solo_limit` times is
 * poison. A death by an outside signal blames no sample and changes nothing, and neither does a
 * worker that is dismissed because it broke the protocol: what it says proves nothing, not even
 * that it tried (design sections 3 and 9). A worker may be sent the next lease while it does the
 * last item of one; when it goes, that one was not begun.
 *
 *   WAITING --lease_give--> OUT --lease_done--> (owner frees it)
 *      ^                     |
 *      +----lease_lost-------+   front of the queue: the late one goes first
 */
#ifndef TESSERA_PREPD_SERVE_LEASE_H
#define TESSERA_PREPD_SERVE_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

typedef enum lease_kind { LEASE_ROW, LEASE_IMAGES, LEASE_TEXTS } lease_kind;

/* How a worker went. */
typedef enum loss {
    LOSS_OUTSIDE, /* a signal that another process sent, or it left in good order */
    LOSS_CRASH,   /* a crash signal of its own doing, or an exit while at work */
    LOSS_TIMEOUT, /* we killed it: too long on one sample */
    LOSS_BREACH,  /* dismissed: it sent what no worker sends */
} loss;

typedef enum lease_verdict {
    LEASE_AGAIN,  /* give it again */
    LEASE_POISON, /* *out_item is poison: flag it, then give the lease again */
} lease_verdict;

/* Losses by a worker's own doing before the items are tried one by one. */
enum { LEASE_MAX_LOSSES = 2 };

/* What one worker elsewhere told of the items of an index lease, until others say the same
 * (claims.c). */
typedef struct lease_claim {
    uint64_t by;     /* worker_seat.number */
    uint64_t *facts; /* [n_items] a hash of each record; owned */
} lease_claim;
enum { LEASE_MAX_CLAIMS = 2 };

typedef struct lease {
    lease_kind kind;
    uint64_t number;  /* of this lease, unique in the dispatcher's life */
    void *owner;      /* the session or index builder it belongs to */
    uint64_t row;     /* LEASE_ROW: row of the stream */
    uint64_t after;   /* LEASE_ROW: the one its consumer goes on with, whenever it is given */
    int64_t n_items;  /* samples or images; 0 in an empty row */
    int64_t *item;    /* [n_items] owned */
    int64_t reached;  /* items up to the last one reported by the worker that has it */
    int losses;       /* by the worker's own doing, since the last verdict */
    int64_t suspect;  /* the item last reported in work, -1 unknown */
    bool solo;        /* items are being tried one by one */
    int64_t *untried; /* [n_untried] items still to be tried, the next one first */
    int64_t n_untried;
    int solo_deaths; /* of untried[0] */
    int rounds;      /* how often its items were tried alone */
    lease_claim claim[LEASE_MAX_CLAIMS];
    int n_claims; /* 2: they differ */
    struct lease *next;
} lease;

typedef struct lease_book {
    lease *lost; /* first to be given again */
    uint64_t next_number;
    int solo_limit;
} lease_book;

void lease_book_init(lease_book *b, int solo_limit);

/* A new lease over a copy of items. */
WARN_UNUSED status lease_new(lease_book *b, lease_kind kind, void *owner, uint64_t row,
                             const int64_t *item, int64_t n_items, lease **out);
void lease_free(lease **l);

/* The first lost lease this worker may do, taken off the queue; NULL if none. A fresh worker gets a
 * solo one if there is any, others never do. */
lease *lease_book_take(lease_book *b, bool fresh);
/* The same of those that `may` allows. */
typedef bool (*lease_filter)(const void *user, const lease *l);
lease *lease_book_take_if(lease_book *b, bool fresh, lease_filter may, const void *user);
/* True if there is one. */
bool lease_book_has(const lease_book *b, bool fresh, lease_filter may, const void *user);
/* True if a lost lease waits for a fresh worker. */
bool lease_book_wants_fresh(const lease_book *b);
/* Puts it at the end of the queue of lost ones: after a flag changed, or its worker refused it. */
void lease_book_return(lease_book *b, lease *l);
/* Its worker went before it began: queued again at the front, and nobody is blamed. */
void lease_unbegun(lease_book *b, lease *l);
/* Frees the lost leases of an owner that goes. */
void lease_book_forget(lease_book *b, const void *owner);
int64_t lease_book_waiting(const lease_book *b);

/* The one item to be done now, or -1: the whole lease. */
int64_t lease_solo_item(const lease *l);

bool lease_has(const lease *l, int64_t item);

/* The worker reported to be on this item, which the lease has. True if it is further in the lease
 * than it was: that happens at most n_items times, whatever it reports. */
bool lease_on(lease *l, int64_t item);

/* The worker that had it is gone; the lease is queued again at the front. */
lease_verdict lease_lost(lease_book *b, lease *l, loss how, int64_t *out_item);

/* A solo item was done without harm. The lease is queued again: for the next item, or whole. */
void lease_solo_done(lease_book *b, lease *l);

/* Drops an item (an index image found to be poison), and what was told of it. */
void lease_drop_item(lease *l, int64_t item);

/* A copy of what was told of the lease's items, in their order. */
WARN_UNUSED status lease_add_claim(lease *l, uint64_t by, const uint64_t *facts);

#endif
