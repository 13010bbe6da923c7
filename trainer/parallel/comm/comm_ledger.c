/* SPDX-License-Identifier: Apache-2.0 */
/* comm_ledger.c: implements comm_ledger.h: a table with one line per kind of call; a step is the
 * difference between two closings of it. */
#include "trainer/parallel/comm/comm_ledger.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

/* The purposes of calls are literals in the source, so their number is known. */
enum { TALLIES = 256 };

typedef struct counted {
    int64_t calls, bytes;
} counted;

struct comm_ledger {
    comm_tally tally[TALLIES];
    int count;
    counted before[TALLIES]; /* at the beginning of the capture in progress */
    counted **piece;         /* [n_pieces] of [TALLIES]; NULL: not captured */
    int64_t n_pieces;
    pthread_mutex_t lock; /* guards `now` */
    comm_now now;
};

const char *comm_kind_name(comm_kind kind)
{
    static const char *const name[COMM_KINDS] = {[COMM_ALL_GATHER] = "all gather",
                                                 [COMM_REDUCE_SCATTER] = "reduce scatter",
                                                 [COMM_ALL_REDUCE] = "all reduce",
                                                 [COMM_BROADCAST] = "broadcast",
                                                 [COMM_ALL_TO_ALL] = "all to all",
                                                 [COMM_SEND] = "send",
                                                 [COMM_RECV] = "recv",
                                                 [COMM_PEERS] = "load and store"};
    return name[kind];
}

status comm_ledger_new(comm_ledger **out)
{
    comm_ledger *books = calloc(1, sizeof *books);
    if (!books)
        return FAIL(ST_NO_MEMORY, "no memory for the ledger of collectives");
    pthread_mutex_init(&books->lock, NULL);
    *out = books;
    return ST_OK;
}

void comm_ledger_free(comm_ledger **ledger)
{
    if (!*ledger)
        return;
    pthread_mutex_destroy(&(*ledger)->lock);
    for (int64_t i = 0; i < (*ledger)->n_pieces; i++)
        free((*ledger)->piece[i]);
    free((*ledger)->piece);
    free(*ledger);
    *ledger = NULL;
}

/* The index of a tally, or -1. */
static int find_tally(const comm_ledger *books, const char *group, comm_kind kind, const char *what)
{
    for (int i = 0; i < books->count; i++) {
        const comm_tally *tally = &books->tally[i];
        if (tally->kind == kind && (tally->what == what || strcmp(tally->what, what) == 0) &&
            strcmp(tally->group, group) == 0)
            return i;
    }
    return -1;
}

static void set_inside(comm_ledger *books, bool inside)
{
    pthread_mutex_lock(&books->lock);
    books->now.inside = inside;
    books->now.since_ns = clock_ns();
    pthread_mutex_unlock(&books->lock);
}

void comm_ledger_enter(comm_ledger *ledger, const comm *group, comm_kind kind, comm_at at,
                       int64_t bytes)
{
    if (!ledger)
        return;
    int i = find_tally(ledger, group->name, kind, at.what);
    if (i < 0) {
        assert(ledger->count < TALLIES);
        i = ledger->count++;
        ledger->tally[i] = (comm_tally){.kind = kind, .what = at.what};
        memcpy(ledger->tally[i].group, group->name, sizeof ledger->tally[i].group);
    }
    comm_tally *tally = &ledger->tally[i];
    tally->calls++;
    tally->bytes += bytes;
    pthread_mutex_lock(&ledger->lock);
    ledger->now = (comm_now){true, "", kind, at.what, at.layer, clock_ns()};
    memcpy(ledger->now.group, group->name, sizeof ledger->now.group);
    pthread_mutex_unlock(&ledger->lock);
}

void comm_ledger_late(comm_ledger *ledger, const comm *group, comm_kind kind, const char *what,
                      int64_t bytes)
{
    const int i = ledger ? find_tally(ledger, group->name, kind, what) : -1;
    if (i < 0)
        return;
    comm_tally *tally = &ledger->tally[i];
    tally->bytes += bytes;
    tally->closed_bytes += bytes;
    tally->step_bytes = bytes;
}

void comm_ledger_wait(comm_ledger *ledger)
{
    if (ledger)
        set_inside(ledger, true);
}

void comm_ledger_leave(comm_ledger *ledger)
{
    if (ledger)
        set_inside(ledger, false);
}

comm_now comm_ledger_now(comm_ledger *ledger)
{
    if (!ledger)
        return (comm_now){0};
    pthread_mutex_lock(&ledger->lock);
    comm_now now = ledger->now;
    pthread_mutex_unlock(&ledger->lock);
    return now;
}

static status keep_piece(comm_ledger *books, int64_t piece)
{
    if (piece >= books->n_pieces) {
        counted **list = realloc(books->piece, (size_t)(piece + 1) * sizeof *list);
        if (!list)
            return FAIL(ST_NO_MEMORY, "no memory for the ledger of captured steps");
        books->piece = list;
        while (books->n_pieces <= piece)
            list[books->n_pieces++] = NULL;
    }
    free(books->piece[piece]);
    counted *count = books->piece[piece] = calloc(TALLIES, sizeof *count);
    if (!count)
        return FAIL(ST_NO_MEMORY, "no memory for the ledger of captured steps");
    for (int i = 0; i < books->count; i++)
        count[i] = (counted){books->tally[i].calls - books->before[i].calls,
                             books->tally[i].bytes - books->before[i].bytes};
    return ST_OK;
}

status comm_ledger_captured(comm_ledger *ledger, int64_t piece, bool begins)
{
    if (!ledger)
        return ST_OK;
    if (!begins)
        return keep_piece(ledger, piece);
    memset(ledger->before, 0, sizeof ledger->before);
    for (int i = 0; i < ledger->count; i++)
        ledger->before[i] = (counted){ledger->tally[i].calls, ledger->tally[i].bytes};
    return ST_OK;
}

void comm_ledger_replayed(comm_ledger *ledger, int64_t piece)
{
    for (int i = 0; ledger && i < ledger->count; i++) {
        ledger->tally[i].calls += ledger->piece[piece][i].calls;
        ledger->tally[i].bytes += ledger->piece[piece][i].bytes;
    }
}

void comm_ledger_close_step(comm_ledger *ledger)
{
    for (int i = 0; ledger && i < ledger->count; i++) {
        comm_tally *tally = &ledger->tally[i];
        tally->step_calls = tally->calls - tally->closed_calls;
        tally->step_bytes = tally->bytes - tally->closed_bytes;
        tally->closed_calls = tally->calls;
        tally->closed_bytes = tally->bytes;
    }
}

int comm_ledger_list(const comm_ledger *ledger, const comm_tally **out)
{
    *out = ledger ? ledger->tally : NULL;
    return ledger ? ledger->count : 0;
}

const comm_tally *comm_ledger_find(const comm_ledger *ledger, const char *group, comm_kind kind,
                                   const char *what)
{
    const int i = ledger ? find_tally(ledger, group, kind, what) : -1;
    return i < 0 ? NULL : &ledger->tally[i];
}

void comm_ledger_print(const comm_ledger *ledger, FILE *to)
{
    int64_t calls = 0, bytes = 0;
    fprintf(to, "received from other ranks in the last step:\n%-14s %-15s %-24s %8s %16s\n",
            "group", "kind", "for", "calls", "bytes");
    for (int i = 0; ledger && i < ledger->count; i++) {
        const comm_tally *tally = &ledger->tally[i];
        if (tally->step_calls == 0)
            continue;
        fprintf(to, "%-14s %-15s %-24s %8" PRId64 " %16" PRId64 "\n", tally->group,
                comm_kind_name(tally->kind), tally->what, tally->step_calls, tally->step_bytes);
        calls += tally->step_calls;
        bytes += tally->step_bytes;
    }
    fprintf(to, "%-14s %-15s %-24s %8" PRId64 " %16" PRId64 "\n", "all", "", "", calls, bytes);
}
