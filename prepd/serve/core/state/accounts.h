/* SPDX-License-Identifier: Apache-2.0 */
/* accounts.h: what the dispatcher remembers of the holders of keys: how long each is excluded, how
 * many of its rows are still to be checked, how much work it may have. Pure state: no sockets, no
 * clock.
 *
 * A key without its own name is still one key. Where there are no keys, an address stands for
 * one; over ipc all processes that are not the daemon's own have one account. Nothing that a peer
 * says about itself is part of it, and nothing that it does well cancels what it did. All of it
 * ends with the daemon.
 *
 *   excluded   gets no work, and its JOIN is answered with the time to wait: a minute after it was
 *              found to make false rows or to report good samples, then 2, 4 .. 64 minutes.
 *              Breaches of the protocol, work that it does not begin and JOINs without work exclude
 *              from the fourth on, for 1, 2, 4 .. 3840 s
 *   watched    its next rows are made again by a decider: 16, then 32, 64 ..; 200 of another build
 *   suspected  (a consumer) it refused a good row: its rows come from deciders alone, and if it
 *              refuses one of those it is turned away, both for a minute, then 2, 4 .. 64 */
#ifndef TESSERA_PREPD_SERVE_CORE_STATE_ACCOUNTS_H
#define TESSERA_PREPD_SERVE_CORE_STATE_ACCOUNTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/status.h"
#include "proto/wire/wire.h"

enum {
    MAX_ACCOUNTS = 1024,
    ACCOUNT_ID = WIRE_HOST_TEXT, /* no key is longer than an address */
    ACCOUNT_NAME = WIRE_KEY_NAME,
    ACCOUNT_WHY = 160,
    ACCOUNT_SEATS = 4096, /* workers of one key */
};

/* A span of time that doubles each time it is set. */
typedef struct penalty {
    int64_t until_ns, set_ns;
    int times;
} penalty;

typedef struct account {
    uint64_t number; /* from 1; never given twice; 0: a free place */
    char id[ACCOUNT_ID];
    char name[ACCOUNT_NAME]; /* by which people know it */
    int uses;                /* seats and consumers that point to it */
    penalty excluded;
    int64_t word_until_ns; /* until when it is excluded for a false word */
    char why[ACCOUNT_WHY]; /* it is excluded */
    int breaches;
    int64_t breached_ns; /* the last one */
    int64_t watched;     /* rows */
    int watches;
    char build[HASH_TEXT];      /* the last other build id that its workers said */
    int64_t contradicted_ns;    /* when a decider last found its word false; 0: never */
    penalty suspected, refused; /* as a consumer */
    int64_t joins_ns;           /* JOINs: when the next one is due, if they come evenly */
    int64_t leases;             /* that its workers have now, those taken from them included */
    int64_t window;             /* that they may have */
    int seats;
} account;

/* It starts as zeros. */
typedef struct accounts {
    account *of[MAX_ACCOUNTS]; /* [used] */
    int used;
    uint64_t last; /* number */
} accounts;

/* The account of a peer. `host` is the address of its connection, "" over ipc. A place of one that
 * has nothing to be remembered is used again. If there is none, all further peers share the last
 * place. NO_MEMORY. */
WARN_UNUSED status account_open(accounts *list, const wire_peer *peer, const char *host,
                                int64_t now_ns, account **out);
account *account_of(const accounts *list, uint64_t number); /* NULL: it is forgotten */
void accounts_free(accounts *list);

bool account_is_excluded(const account *held, int64_t now_ns);
/* Its word was found to be false: excludes it for minutes. False if it is excluded for that
 * already. */
bool account_exclude(account *held, const char *why, int64_t now_ns);
/* It broke the protocol, or wasted a JOIN or a lease. True if that excludes it for a while. */
bool account_breach(account *held, const char *why, int64_t now_ns);
/* Has its next rows checked, twice as many as the time before. */
void account_watch(account *held);
/* A worker of another build than the daemon's has joined. If the account had none of that build,
 * its next 200 rows are checked. */
void account_take_build(account *held, const char *build);
/* Whether it may JOIN once more: 100 a second, and 1024 at once. */
bool account_may_join(account *held, int64_t now_ns);
/* How many leases it may have at once: one, doubling with each that it answers. A lost one begins
 * again. */
bool account_may_have(const account *held);
void account_answered(account *held);
void account_lost(account *held);
/* Sets a penalty for what was done at done_ns: a minute, doubling up to 64. What was done before
 * the last one was set is paid for. */
void penalty_set(penalty *held, int64_t done_ns, int64_t now_ns);
bool penalty_holds(const penalty *held, int64_t now_ns);
/* Lifts all that holds against accounts of this name (a key's name or an address). *out_was says
 * what that was, "" for nothing. Returns how many there are of it. */
int accounts_admit(accounts *list, const char *name, int64_t now_ns, const char **out_was);

#endif
