/* SPDX-License-Identifier: Apache-2.0 */
/* rank_link.c: implements rank_link.h: the shell of the rank link. What is decided, is decided by
 * its core (core/link_core.h); this file gives it what happens and does what it answers.
 *
 * While ranks meet, the thread that opens the link does so. Afterwards a separate thread does,
 * which polls all connections. Other threads see `over`, `lost` and `others_wait`. */
#include "trainer/parallel/link/rank_link.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/proc.h"
#include "common/program/log.h"
#include "trainer/parallel/link/rank_link.h"
#include "trainer/parallel/link/rank_link_sockets.h"
#include "trainer/parallel/link/rank_link_where.h"

typedef struct rank_link_notes {
    pthread_mutex_t lock;
    char *own;   /* of this rank, not sent yet; NULL: none */
    char **kept; /* [ranks] the last one of each; NULL: none */
    int ranks;
} rank_link_notes;

/* ---- notes ---- */

static status rank_link_notes_init(rank_link_notes *out, int ranks)
{
    *out = (rank_link_notes){.ranks = ranks};
    pthread_mutex_init(&out->lock, NULL);
    out->kept = (char **)calloc((size_t)ranks, sizeof *out->kept);
    return out->kept ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for the rank link");
}

static void rank_link_notes_done(rank_link_notes *notes)
{
    for (int i = 0; notes->kept && i < notes->ranks; i++)
        free(notes->kept[i]);
    free(notes->kept);
    free(notes->own);
    pthread_mutex_destroy(&notes->lock);
}

/* Without memory for it the note is lost, and whoever waits for it waits as long as without it. */
static void replace_note(rank_link_notes *notes, char **inout, const char *note)
{
    char *copy = strdup(note);
    if (!copy)
        log_warn("no memory for what a rank says: %s", note);
    pthread_mutex_lock(&notes->lock);
    free(*inout);
    *inout = copy;
    pthread_mutex_unlock(&notes->lock);
}

/* This rank's note, in place of one that was not sent yet. */
static void rank_link_notes_put(rank_link_notes *notes, const char *note)
{
    replace_note(notes, &notes->own, note);
}

/* Keeps a note of a rank, in place of an earlier one. */
static void rank_link_notes_keep(rank_link_notes *notes, int rank, const char *note)
{
    replace_note(notes, &notes->kept[rank], note);
}

/* Takes it: heap memory of the caller; NULL: there is none. */
static char *rank_link_notes_take(rank_link_notes *notes)
{
    pthread_mutex_lock(&notes->lock);
    char *taken = notes->own;
    notes->own = NULL;
    pthread_mutex_unlock(&notes->lock);
    return taken;
}

static bool rank_link_notes_find(rank_link_notes *notes, int rank, char out[RANK_LINK_NOTE_MAX])
{
    pthread_mutex_lock(&notes->lock);
    const bool found = notes->kept[rank] != NULL;
    if (found)
        snprintf(out, RANK_LINK_NOTE_MAX, "%s", notes->kept[rank]);
    pthread_mutex_unlock(&notes->lock);
    return found;
}

/* ---- the link ---- */

enum { VERSION_MAX = 96, READ_MAX = 1 << 14 };

struct rank_link {
    link_core *core;
    rank_link_sockets sockets;
    rank_link_where where;
    void *id; /* [CONTROL_ID_BYTES] while ranks meet: where the others receive it */
    pthread_t thread;
    bool joined, left;
    bool told;           /* the core knows that the work has ended */
    bool told_late;      /* and that calls are late */
    status code;         /* of joining; the note has its text */
    int64_t reach_until; /* rank 0 is to be reached before that; 0: not now */

    pthread_mutex_t lock; /* guards what follows */
    bool closing;
    char late[CONTROL_TEXT_MAX]; /* why calls have not ended in time; "": they have */
    const char *failed; /* what happened to this rank, borrowed while it closes; NULL: nothing */
    char lost[CONTROL_TEXT_MAX]; /* which rank ended the job and how; written before `over` */
    atomic_bool over;
    atomic_bool others_wait;
    atomic_bool held; /* this rank waits for others, by rank_link_held */

    rank_link_notes notes;
    atomic_llong agree_ns; /* how long an agreement may take */
    pthread_cond_t agreed; /* signalled, under the lock, when `asks` ends or the job does */
    bool asks, asked;      /* this rank waits for an answer; the core has the question */
    uint8_t need[LINK_NEEDS];
};

/* ---- where this rank is ---- */

void rank_link_waits(rank_link *link, const char *what)
{
    if (link)
        atomic_store(&link->where.waits, what);
}

bool rank_link_is_waiting(rank_link *link)
{
    return atomic_load(&link->where.waits) != NULL;
}

bool rank_link_others_wait(rank_link *link)
{
    return atomic_load(&link->others_wait);
}

void rank_link_held(rank_link *link, bool held)
{
    atomic_store(&link->held, held);
}

void rank_link_at_step(rank_link *link, int64_t step, const uint64_t *sample, int64_t count)
{
    if (link)
        rank_link_where_set(&link->where, step, sample, count);
}

status rank_link_check(rank_link *link)
{
    if (!link || !atomic_load(&link->over))
        return ST_OK;
    return FAIL(ST_UNAVAILABLE, "%s", link->lost); /* written once, before over */
}

/* Whether this rank waits for the others, in whatever way. */
static bool is_held(rank_link *link)
{
    pthread_mutex_lock(&link->lock);
    const bool asks = link->asks;
    pthread_mutex_unlock(&link->lock);
    return asks || atomic_load(&link->held) || comm_ledger_now(link->where.ledger).inside;
}

static link_now see_now(rank_link *link)
{
    return (link_now){.ns = clock_ns(),
                      .waits = rank_link_is_waiting(link),
                      .held = is_held(link),
                      .began = rank_link_where_began(&link->where),
                      .call_ns = atomic_load(&link->agree_ns)};
}

/* ---- what the core answers ---- */

static void end_job(rank_link *link, const link_action *end)
{
    char place[CONTROL_TEXT_MAX];
    snprintf(link->lost, sizeof link->lost, "%s", end->text);
    atomic_store(&link->over, true);
    pthread_mutex_lock(&link->lock);
    pthread_cond_signal(&link->agreed);
    pthread_mutex_unlock(&link->lock);
    if (!end->say)
        return;
    rank_link_where_tell(&link->where, place, sizeof place);
    log_hush(end->hush);
    log_error("the run ends: %s; this rank: %s", end->text, place);
}

/* Ends a process that is stuck in its work. */
static void end_process(const link_action *end)
{
    if (end->say) { /* it was to be printed when the work ends, which will not happen */
        log_hush(false);
        log_error("the run ends: %s", end->text);
    }
    log_error("this rank did not leave its work within %d s after the end of the job; its process "
              "is ended",
              LINK_GRACE_S);
    fflush(NULL);
    _exit(status_exit_code(ST_UNAVAILABLE));
}

static void send_place(rank_link *link, const link_action *beat)
{
    char place[CONTROL_TEXT_MAX];
    rank_link_where_tell(&link->where, place, sizeof place);
    rank_link_sockets_send(&link->sockets, beat->conn, beat->message, place, strlen(place), true);
}

static void take_answer(rank_link *link, const link_action *answer)
{
    pthread_mutex_lock(&link->lock);
    memcpy(link->need, answer->bytes, sizeof link->need);
    link->asks = link->asked = false;
    pthread_cond_signal(&link->agreed);
    pthread_mutex_unlock(&link->lock);
}

static void do_action(rank_link *link, const link_action *action)
{
    rank_link_sockets *const sockets = &link->sockets;
    switch (action->kind) {
    case LINK_CONNECT:
        link->reach_until = action->until_ns;
        break;
    case LINK_SEND:
        rank_link_sockets_send(sockets, action->conn, action->message, action->bytes, action->size,
                               false);
        break;
    case LINK_SEND_AT:
        send_place(link, action);
        break;
    case LINK_FINISH:
        rank_link_sockets_finish(sockets, action->conn);
        break;
    case LINK_CLOSE:
        rank_link_sockets_hang_up(sockets, action->conn);
        break;
    case LINK_WARN:
        log_warn("%s", action->text);
        break;
    case LINK_NOTE:
        rank_link_notes_keep(&link->notes, action->rank, action->text);
        break;
    case LINK_AGREED:
        take_answer(link, action);
        break;
    case LINK_JOINED:
        link->joined = true;
        memcpy(link->id, action->bytes, action->size);
        break;
    case LINK_FAILED:
        link->code = FAIL(action->code, "%s", action->text);
        break;
    case LINK_ENDS:
        end_job(link, action);
        break;
    case LINK_EXIT:
        end_process(action);
        break;
    case LINK_LEFT:
        link->left = true;
    }
}

static void reach_rank_0(rank_link *link)
{
    const int conn = rank_link_sockets_reach(&link->sockets, link->reach_until);
    const char *why = strerror(errno);
    link->reach_until = 0;
    if (conn >= 0)
        link_core_connected(link->core, see_now(link), conn);
    else
        link_core_not_connected(link->core, see_now(link), why);
}

/* Does all that the core has answered, and what follows from that. */
static void do_actions(rank_link *link)
{
    link_action action;
    for (;;) {
        while (link_core_next(link->core, &action))
            do_action(link, &action);
        if (!link->reach_until)
            break;
        reach_rank_0(link);
    }
    atomic_store(&link->others_wait, link_core_others_wait(link->core));
}

/* ---- what happens ---- */

static void read_conn(rank_link *link, int conn)
{
    uint8_t bytes[READ_MAX];
    const ptrdiff_t got = rank_link_sockets_read(&link->sockets, conn, bytes, sizeof bytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got > 0)
        link_core_bytes(link->core, see_now(link), conn, bytes, (size_t)got);
    else if (got == 0)
        link_core_gone(link->core, see_now(link), conn, NULL);
    else
        link_core_gone(link->core, see_now(link), conn, strerror(errno));
    do_actions(link);
}

/* Notices that rank_link_agree was called. */
static void see_question(rank_link *link)
{
    uint8_t need[LINK_NEEDS];
    pthread_mutex_lock(&link->lock);
    const bool asks = link->asks && !link->asked;
    link->asked |= asks;
    memcpy(need, link->need, sizeof need);
    pthread_mutex_unlock(&link->lock);
    if (!asks)
        return;
    link_core_need(link->core, see_now(link), need);
    do_actions(link);
}

/* Notices that rank_link_tell was called. */
static void see_note(rank_link *link)
{
    char *note = rank_link_notes_take(&link->notes);
    if (!note)
        return;
    link_core_tell(link->core, see_now(link), note);
    do_actions(link);
    free(note);
}

/* Notices that rank_link_late was called. */
static void see_late(rank_link *link)
{
    pthread_mutex_lock(&link->lock);
    const bool late = link->late[0] && !link->told_late;
    pthread_mutex_unlock(&link->lock);
    if (!late)
        return;
    link->told_late = true;
    link_core_late(link->core, see_now(link), link->late);
    do_actions(link);
}

/* Notices that rank_link_close was called. */
static void see_closing(rank_link *link)
{
    pthread_mutex_lock(&link->lock);
    const bool closing = link->closing && !link->told;
    pthread_mutex_unlock(&link->lock);
    if (!closing)
        return;
    link->told = true;
    link_core_leave(link->core, see_now(link), link->failed);
    do_actions(link);
}

/* Waits for the next event, and deals with all that there are. */
static void take_turn(rank_link *link)
{
    rank_link_sockets_wait(&link->sockets, link_core_due(link->core));
    const int come = rank_link_sockets_accept(&link->sockets);
    for (int conn = rank_link_sockets_ready(&link->sockets, 0); conn >= 0 && !link->left;
         conn = rank_link_sockets_ready(&link->sockets, conn + 1))
        read_conn(link, conn);
    if (come >= 0) {
        link_core_connected(link->core, see_now(link), come);
        do_actions(link);
    }
    see_question(link);
    see_note(link);
    see_late(link);
    see_closing(link);
    if (!link->left) {
        link_core_time(link->core, see_now(link));
        do_actions(link);
    }
}

static void *watch_peers(void *of)
{
    rank_link *link = of;
    while (!link->left)
        take_turn(link);
    return NULL;
}

/* ---- agreeing ---- */

static void wake_thread(rank_link *link)
{
    const uint64_t one = 1;
    if (write(link->sockets.wake, &one, sizeof one) < 0)
        log_warn("rank link: its thread cannot be woken: eventfd: %s", strerror(errno));
}

status rank_link_agree(rank_link *link, uint8_t inout_need[LINK_NEEDS])
{
    pthread_mutex_lock(&link->lock);
    memcpy(link->need, inout_need, sizeof link->need);
    link->asks = true;
    wake_thread(link);
    while (link->asks && !atomic_load(&link->over)) /* one of them comes, by the link's deadlines */
        pthread_cond_wait(&link->agreed, &link->lock);
    const bool agreed = !link->asks;
    memcpy(inout_need, link->need, sizeof link->need);
    pthread_mutex_unlock(&link->lock);
    return agreed ? ST_OK : rank_link_check(link);
}

void rank_link_late(rank_link *link, const char *why)
{
    pthread_mutex_lock(&link->lock);
    if (!link->late[0])
        snprintf(link->late, sizeof link->late, "%s", why);
    pthread_mutex_unlock(&link->lock);
    wake_thread(link);
}

void rank_link_tell(rank_link *link, const char *note)
{
    if (!link)
        return;
    rank_link_notes_put(&link->notes, note);
    wake_thread(link);
}

bool rank_link_told(rank_link *link, int rank, char out[RANK_LINK_NOTE_MAX])
{
    return rank_link_notes_find(&link->notes, rank, out);
}

void rank_link_set_timeout(rank_link *link, double seconds)
{
    if (link)
        atomic_store(&link->agree_ns, (int64_t)(seconds * 1e9));
}

/* ---- opening and closing ---- */

/* The version and a hash of the program: two builds of one version do not form a job. */
static status version_text(char out[VERSION_MAX])
{
    char self[STATUS_PATH_MAX], build[HASH_TEXT];
    hash128 digest;
    TRY(proc_self_path(self, sizeof self));
    TRY(hash_file(self, &digest));
    hash_print(digest, build);
    snprintf(out, VERSION_MAX, "trainer " TESSERA_VERSION " (build %.12s)", build);
    return ST_OK;
}

static status make_core(const rank_link_options *options, const void *id, rank_link *link)
{
    char host[CONTROL_HOST_MAX] = "?", version[VERSION_MAX];
    TRY(version_text(version));
    gethostname(host, sizeof host - 1);
    const link_terms terms = {.me = {(uint32_t)options->rank, (uint32_t)options->size,
                                     (uint32_t)getpid(), host, version, options->options},
                              .at_host = options->at.host,
                              .at_port = options->at.port,
                              .timeout_s = options->timeout_s,
                              .silence_s = options->silence_s,
                              .one_machine = options->one_machine,
                              .id = id};
    return link_core_new(&terms, see_now(link), &link->core);
}

static status meet_ranks(const rank_link_options *options, void *id, rank_link *link)
{
    TRY(make_core(options, id, link));
    TRY(rank_link_sockets_open(&link->sockets, &options->at, options->rank == 0,
                               link_core_connections(link->core)));
    link->id = id;
    link_core_time(link->core, see_now(link));
    do_actions(link);
    while (!link->joined && link->code == ST_OK)
        take_turn(link);
    link->id = NULL;
    return link->code;
}

/* Starts the thread with all signals blocked, since signals are for the thread that trains. */
static status start_thread(rank_link *link)
{
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    int rc = pthread_create(&link->thread, NULL, watch_peers, link);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return rc == 0 ? ST_OK
                   : FAIL(ST_OS, "the thread of the rank link cannot be started: %s", strerror(rc));
}

static void rank_link_free(rank_link **link)
{
    rank_link_sockets_close(&(*link)->sockets);
    link_core_free(&(*link)->core);
    rank_link_notes_done(&(*link)->notes);
    rank_link_where_done(&(*link)->where);
    pthread_mutex_destroy(&(*link)->lock);
    pthread_cond_destroy(&(*link)->agreed);
    free(*link);
    *link = NULL;
}

status rank_link_open(const rank_link_options *options, void *id, rank_link **out)
{
    rank_link *link = calloc(1, sizeof *link);
    if (!link)
        return FAIL(ST_NO_MEMORY, "no memory for the rank link");
    rank_link_where_init(&link->where, options->ledger);
    link->sockets.listener = link->sockets.wake = -1;
    rank_link_set_timeout(link, options->timeout_s);
    pthread_mutex_init(&link->lock, NULL);
    pthread_cond_init(&link->agreed, NULL);
    status st = rank_link_notes_init(&link->notes, options->size);
    if (st == ST_OK)
        st = meet_ranks(options, id, link);
    if (st == ST_OK)
        st = start_thread(link);
    if (st != ST_OK)
        rank_link_free(&link);
    else
        *out = link;
    return st;
}

/* Decides about the last line of a rank that ends before the first step. */
static void fit_last_line(rank_link *link, const char *failed)
{
    const link_last_line last =
        link_core_last_line(link->core, rank_link_where_began(&link->where), failed);
    log_hush(last.hush);
    if (last.say)
        log_error("the run ends: %s", last.say);
}

status rank_link_close(rank_link **link, const char *failed)
{
    status st = ST_OK;
    if (!*link)
        return ST_OK;
    pthread_mutex_lock(&(*link)->lock);
    (*link)->failed = failed;
    (*link)->closing = true;
    pthread_mutex_unlock(&(*link)->lock);
    wake_thread(*link);
    pthread_join((*link)->thread, NULL);
    if (failed)
        fit_last_line(*link, failed);
    else
        st = rank_link_check(*link);
    rank_link_free(link);
    return st;
}
