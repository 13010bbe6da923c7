/* SPDX-License-Identifier: Apache-2.0 */
/* lease.h: what happens to a piece of work when its worker goes. Pure state: no sockets, no
 * clock.
 *
 * A lease is a list of items (the samples and prefixes of a row, or images or texts of the index)
 * that one worker does at a time. When its worker goes, the lease is handed out again. The question
 * is whether one of its items is to blame, and the answer must never cost a good sample:
 *
 *   - A death by a signal from outside blames nothing. Neither does the loss of a worker that is no
 *     decider: what such a worker says proves nothing, not even that it tried. After
 *     LEASE_MAX_STRIKES of these only deciders get the lease.
 *   - A decider that crashes or exceeds its time limit by its own doing counts. After
 *     LEASE_MAX_LOSSES of these the lease goes solo: its items are tried alone, each in a fresh
 *     decider. The item that was last reported to be in work is tried first, and only that one, if
 *     one is known. If it was harmless, the next time every item is tried.
 *   - An item that kills its worker alone `solo_limit` times is poison: the caller puts it into
 *     quarantine (or refuses it in the index), and the lease is handed out again without it.
 *
 * A prefix is a separate item, before the samples that are its branches. It is ~s, the
 * complement of its first branch's sample s, so that a prefix and a sample are never the same
 * number. What is decided about a prefix holds for all its branches, since they all show its
 * pictures (lease_next_hit). It is tried alone as its first branch's sample; a branch alone is
 * tried as that sample, which then stands for itself only.
 *
 * A worker may be sent its next lease while it still does the last item of one. When it goes, the
 * lease that it had not begun is simply queued again (lease_unbegun).
 *
 *   WAITING --lease_give--> OUT --lease_done--> (the owner frees it)
 *      ^                     |
 *      +----lease_lost-------+   at the front of the queue, since it is late
 *
 * (lease_give is lease_new or lease_book_take_if; lease_done is whatever the answer leads to.) */
#ifndef TESSERA_PREPD_SERVE_CORE_STATE_LEASE_H
#define TESSERA_PREPD_SERVE_CORE_STATE_LEASE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"
#include "prepd/serve/core/state/accounts.h"
#include "proto/wire/wire.h"

typedef enum lease_kind { LEASE_ROW, LEASE_IMAGES, LEASE_TEXTS } lease_kind;

/* How a worker went. */
typedef enum loss {
    LOSS_OUTSIDE, /* killed by a signal that another process sent, or it left in good order */
    LOSS_CRASH,   /* a crash signal of its own doing, or an exit while at work */
    LOSS_TIMEOUT, /* it took too long on one sample and was killed by its time limit */
    LOSS_BREACH,  /* dismissed, because it sent what no worker sends */
} loss;

typedef enum lease_verdict {
    LEASE_AGAIN,  /* the lease can be given again as it is */
    LEASE_POISON, /* *out_item is poison: flag it; then the lease can be given again */
} lease_verdict;

/* How many workers a lease may cost by their own doing before its items are tried one by one. */
enum { LEASE_MAX_LOSSES = 2 };
/* How often others may lose a lease before it goes to a decider. */
enum { LEASE_MAX_STRIKES = 2 };

/* No item: neither a sample, nor a prefix, nor an image. */
#define LEASE_NO_ITEM INT64_MIN

/* The sample that an item of a row is, or as which it is tried alone. */
static inline int64_t lease_sample(int64_t item)
{
    return item < 0 ? ~item : item;
}

/* A sample of a row that a worker could not decode (doubts.c).
 * A decider tries it alone. */
typedef struct failure {
    int64_t item;
    char *cause;      /* as it was told; owned */
    uint64_t by;      /* worker_seat.number */
    uint64_t account; /* account.number of that worker's key; 0: a decider's word */
    struct failure *next;
} failure;

/* What is known of a row that a decider makes, or makes again, before it is sent. Who is right is
 * decided in doubts.c. */
enum { DOUBT_DECIDERS = 3, DOUBT_WHO_BYTES = 128 };

typedef struct doubt {
    uint64_t account; /* account.number of the key whose row it is; 0: a decider made it */
    char maker[DOUBT_WHO_BYTES]; /* in words */
    wire_msg *made[2]; /* [n_made] rows with which the next decider's is compared; owned */
    int n_made;
    uint64_t by[DOUBT_DECIDERS]; /* [n_by] worker_seat.number of the deciders that have made it */
    int n_by;
    int deaths; /* of deciders that decoded what they were to compare with */
    bool must;  /* it waits for as long as it takes */
    int64_t since_ns;
    char *tag;    /* of made[0] while it is the maker's; owned */
    bool refused; /* it was refused; the maker's row is known by its digest alone */
    hash128 digest;
    int64_t refused_ns; /* when */
    uint64_t refuser;   /* account.number of the consumer's key */
} doubt;

typedef struct lease {
    lease_kind kind;
    uint64_t number;  /* unique in the dispatcher's life */
    void *owner;      /* a consumer_seat (LEASE_ROW) or a source; NULL once its consumer has gone */
    uint64_t row;     /* LEASE_ROW: the row of the stream */
    uint64_t after;   /* LEASE_ROW: the row with which its consumer continues after this one */
    uint64_t by;      /* worker_seat.number of the one that has it, or had it last */
    uint64_t account; /* account.number of that worker's key; 0: a decider */
    char *tag;        /* LEASE_ROW, given as a whole: the tag of its row (proto/row/tag.h); owned */
    int64_t n_items;  /* samples or images; 0 for an empty row */
    int64_t *item;    /* [n_items] owned */
    int64_t *branches; /* [n_items] how many of the items after a prefix are its branches, 0 for any
                        * other item; NULL if no item is a prefix; owned */
    int64_t reached;   /* items up to the last one that its present worker has reported */
    int losses;        /* by a worker's own doing, since the last verdict */
    int64_t suspect;   /* the item last reported in work, or LEASE_NO_ITEM */
    bool solo;         /* items are being tried one by one, by deciders */
    bool asking;       /* solo, to hear what a decider says, fresh or not; a death ends it, does not
                        * count, and leaves the trial to fresh ones */
    int64_t *untried;  /* [n_untried] items still to be tried, the next one first; owned */
    int64_t n_untried;
    int solo_deaths;   /* workers that died of untried[0] alone */
    int rounds;        /* how often the lease has gone solo */
    bool all_sent;     /* LEASE_ROW: its worker has all files, its own or those sent with it */
    int strikes;       /* how often workers that are no deciders have lost it */
    bool decide;       /* only deciders may do it */
    failure *failures; /* LEASE_ROW: samples that workers could not decode; owned */
    int comparing; /* LEASE_ROW: from 1: which row of `doubt` its decider decodes now; 0: none */
    bool same[2];  /* LEASE_ROW: what its decider found the rows of `doubt` to be */
    doubt *doubt;  /* LEASE_ROW: what is known of the row already; owned; NULL for most */
    uint64_t bad_mark; /* LEASE_ROW: which of its documents were quarantined when it was given */
    struct lease *next;
} lease;

/* All leases that wait to be given again, and the rule for poison. */
typedef struct lease_book {
    lease *lost; /* linked; the first is given again first */
    uint64_t next_number;
    int solo_limit; /* deaths alone that make an item poison (prepd.solo_deaths) */
} lease_book;

void lease_book_init(lease_book *book, int solo_limit);

/* Makes a lease over a copy of `item` [n_items]. It is not in the book; the caller gives it out. */
WARN_UNUSED status lease_new(lease_book *book, lease_kind kind, void *owner, uint64_t row,
                             const int64_t *item, int64_t n_items, lease **out);
void lease_free(lease **leased);
void lease_drop_failure(lease *leased); /* frees the first of its failures */

/* Whether only deciders may do the lease: records of the index, what is tried alone, and what
 * others could not do or may not say. */
bool lease_needs_decider(const lease *leased);

/* Takes the first lost lease off the queue that this worker may do and `may` allows (`user` is
 * passed on to it); NULL if there is none. A fresh worker (one that has done nothing yet) gets a
 * solo lease if there is any; other workers never do. */
typedef bool (*lease_filter)(const void *user, const lease *leased);
lease *lease_book_take_if(lease_book *book, bool fresh, lease_filter may, const void *user);
/* Whether lease_book_take_if would find one. */
bool lease_book_has(const lease_book *book, bool fresh, lease_filter may, const void *user);
/* Whether a lost lease that `may` allows waits for a fresh worker. */
bool lease_book_wants_fresh(const lease_book *book, lease_filter may, const void *user);
/* Puts a lease at the end of the queue, after an item was flagged or its worker refused it. */
void lease_book_return(lease_book *book, lease *leased);
/* Puts a lease that its worker never began at the front of the queue. Nothing is blamed. */
void lease_unbegun(lease_book *book, lease *leased);
/* Takes this lease off the queue. */
void lease_book_remove(lease_book *book, lease *leased);
/* Frees the lost leases of an owner that goes. */
void lease_book_forget(lease_book *book, const void *owner);
int64_t lease_book_waiting(const lease_book *book);

/* Says that item number `at`, a prefix, has the next `branches` items as its branches. */
WARN_UNUSED status lease_set_branches(lease *leased, int64_t at, int64_t branches);

/* The samples that a verdict about an item is about: the sample itself, or all branches of a
 * prefix. *inout_place is 0 at first. False once there are no more. */
bool lease_next_hit(const lease *leased, int64_t item, int64_t *inout_place, int64_t *out_sample);

/* The one item to be done now, or LEASE_NO_ITEM if the whole lease is to be done. */
int64_t lease_solo_item(const lease *leased);

bool lease_has(const lease *leased, int64_t item);

/* Records that the worker has reported to be on this item, which must be in the lease. True if that
 * is further in the lease than before, which happens at most n_items times, whatever is reported.
 */
bool lease_on(lease *leased, int64_t item);

/* Has an item of a lease that is tried item by item tried before the one that is next. */
void lease_try_first(lease *leased, int64_t item);
/* Has one item tried alone, by a worker that need not be fresh until one has died of it. */
void lease_try_alone(lease *leased, int64_t item);
/* Has an item that has been found to be poison tried alone again; one more death is enough. */
void lease_try_once_more(const lease_book *book, lease *leased, int64_t item);
void lease_end_alone(lease *leased); /* the lease is whole again */

/* The worker that had the lease has gone. Queues the lease at the front and says whether an item is
 * poison now. */
lease_verdict lease_lost(lease_book *book, lease *leased, loss how, int64_t *out_item);
/* The same where the worker was no decider: nothing is blamed, and in the end a decider does it. */
void lease_struck(lease_book *book, lease *leased);

/* The solo item was done without harm. Queues the lease for its next item, or as a whole. */
void lease_solo_done(lease_book *book, lease *leased);

/* Removes an item (an image found to be poison, say). */
void lease_drop_item(lease *leased, int64_t item);

/* --- doubts --- */

doubt *doubt_new(uint64_t number, int64_t now_ns); /* NULL: no memory */
void doubt_free(doubt **out);
/* Whether this decider has made the row; held may be NULL. */
bool doubt_has_made(const doubt *held, uint64_t number);
/* The rows with which the next decider compares its own, borrowed; returns how many. */
int doubt_rows(const lease *leased, const wire_msg *out_rows[2]);
/* A decider died while it decoded what it was to compare its own row with. After two of these the
 * rows are dropped, which counts as if the next decider's differed. */
void doubt_killed(doubt *held);
/* The row's documents are others now, so what was made of it proves nothing: a decider makes it,
 * and the key whose row it was is watched. */
void doubt_void(const accounts *known, lease *leased);

#endif
