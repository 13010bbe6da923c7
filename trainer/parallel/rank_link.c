#include "trainer/parallel/rank_link.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "common/base/words.h"

enum { IDS_TOLD = 16, VERSION_MAX = 96 };
/* How long work may take to end once the job is over; how long a last word may take. */
static const int64_t GRACE_NS = INT64_C(5) * 1000 * 1000 * 1000;
static const int64_t LAST_WORD_NS = INT64_C(2) * 1000 * 1000 * 1000;
/* For how long after that a stopped rank takes the others' end for its own doing. */
static const int64_t STILL_TOLD_NS = INT64_C(5) * 1000 * 1000 * 1000;
/* Beats within the silence that counts as a loss; and at most so far apart. */
enum { BEATS = 5 };
static const int64_t BEAT_MOST_NS = INT64_C(1000) * 1000 * 1000;

struct rank_link {
    int rank, size;
    comm_ledger *ledger;
    int64_t silence_ns, beat_ns;
    int listener, wake;   /* -1: none; an eventfd */
    rank_link_peer *peer; /* [n_peers]: of rank 0 all others, of those rank 0 */
    int n_peers;
    struct pollfd *polled; /* [n_peers + 2] of the thread */
    pthread_t thread;
    bool leaving; /* the thread has seen `closing` */
    bool refused; /* the job is over before its first step, as a rank said itself */
    bool one_machine;
    int64_t leave_by_ns;              /* with a last word on its way, no longer than this */
    int64_t still_ns, still_until_ns; /* how long this process was stopped last, and until when */

    pthread_mutex_t lock; /* of what follows */
    int64_t step;
    uint64_t sample[IDS_TOLD];
    int64_t n_samples;
    bool closing;
    char failed[CONTROL_TEXT_MAX]; /* what happened to this rank; "" nothing */
    char lost[CONTROL_TEXT_MAX];   /* whose fault the end is */
    atomic_bool over;
    _Atomic(const char *) waits; /* for what; NULL: nothing */
    atomic_bool others_wait;
};

/* ---- where this rank is ---- */

static void tell_place(rank_link *c, char *out, size_t size)
{
    comm_now now = comm_ledger_now(c->ledger);
    pthread_mutex_lock(&c->lock);
    size_t n = 0;
    if (c->step == 0)
        n = words_add(out, size, n, "before the first step");
    else
        n = words_add(out, size, n, "step %" PRId64, c->step);
    if (now.what) {
        n = words_add(out, size, n, ", %s %s: %s", now.inside ? "in" : "after",
                      comm_kind_name(now.kind), now.what);
        if (now.layer >= 0)
            n = words_add(out, size, n, " of layer %" PRId64, now.layer);
        n = words_add(out, size, n, " over %s", now.group);
        if (now.inside)
            n = words_add(out, size, n, " for %.1f s", (double)(clock_ns() - now.since_ns) * 1e-9);
    }
    if (c->n_samples > 0)
        n = words_add(out, size, n, ", samples");
    for (int64_t i = 0; i < c->n_samples && i < IDS_TOLD && n + 32 < size; i++)
        n = words_add(out, size, n, " %" PRIu64, c->sample[i]);
    if (c->n_samples > IDS_TOLD)
        n = words_add(out, size, n, " .. (%" PRId64 ")", c->n_samples);
    const char *waits = atomic_load(&c->waits);
    if (waits)
        words_add(out, size, n, ", waiting for %s", waits);
    pthread_mutex_unlock(&c->lock);
}

void rank_link_waits(rank_link *c, const char *what)
{
    if (c)
        atomic_store(&c->waits, what);
}

bool rank_link_is_waiting(rank_link *c)
{
    return atomic_load(&c->waits) != NULL;
}

bool rank_link_others_wait(rank_link *c)
{
    return atomic_load(&c->others_wait);
}

void rank_link_at_step(rank_link *c, int64_t step, const uint64_t *sample, int64_t n)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->step = step;
    c->n_samples = n;
    memcpy(c->sample, sample, (size_t)(n < IDS_TOLD ? n : IDS_TOLD) * sizeof *sample);
    pthread_mutex_unlock(&c->lock);
}

status rank_link_check(rank_link *c)
{
    if (!c || !atomic_load(&c->over))
        return ST_OK;
    return FAIL(ST_UNAVAILABLE, "%s", c->lost); /* written once, before over */
}

/* ---- the end ---- */

/* What a rank said itself of its end. */
static bool is_own_word(const char *why)
{
    int rank, used = 0;
    return sscanf(why, "rank %d failed: %n", &rank, &used) == 1 && used > 0;
}

/* Before the first step all ranks meet the same refusal: of one machine rank 0 says it, once, when
 * it ends; the logs of the others have it. */
static void tell_end(rank_link *c, const char *why)
{
    char place[CONTROL_TEXT_MAX];
    tell_place(c, place, sizeof place);
    c->refused = c->one_machine && c->step == 0 && is_own_word(why);
    if (c->refused && c->rank == 0)
        return;
    log_hush(c->refused);
    log_error("the run ends: %s; this rank: %s", why, place);
}

/* The job is over: this rank's log has it, rank 0 tells the others. */
static void end_job(rank_link *c, const char *why)
{
    if (atomic_load(&c->over))
        return;
    snprintf(c->lost, sizeof c->lost, "%s", why);
    atomic_store(&c->over, true);
    tell_end(c, why);
    for (int i = 0; c->rank == 0 && i < c->n_peers; i++)
        if (c->peer[i].fd >= 0 && rank_link_send(c->peer[i].fd, CONTROL_LOST, c->lost,
                                                 strlen(c->lost), clock_ns()) != ST_OK)
            status_clear(); /* it may be the one that is lost */
}

/* Was this rank stopped a moment ago for so long that the others take it for lost? Then their end
 * is its doing. */
static bool was_still(const rank_link *c)
{
    return c->still_ns + c->beat_ns >= c->silence_ns &&
           clock_ns() - c->still_until_ns < STILL_TOLD_NS;
}

static void end_as_still(rank_link *c, const char *who)
{
    char why[CONTROL_TEXT_MAX], host[CONTROL_HOST_MAX] = "?";
    gethostname(host, sizeof host - 1);
    snprintf(
        why, sizeof why,
        "rank %d (%s, pid %d), this one, did nothing for %.1f s: it was stopped (SIGSTOP), or its "
        "machine was; the others, %s among them, have ended without it",
        c->rank, host, (int)getpid(), (double)c->still_ns * 1e-9, who);
    end_job(c, why);
}

static void lose_peer(rank_link *c, rank_link_peer *p, const char *how)
{
    char why[CONTROL_TEXT_MAX], who[CONTROL_HOST_MAX + 64];
    if (p->rank == 0)
        snprintf(who, sizeof who, "rank 0 (%s)", p->host);
    else
        snprintf(who, sizeof who, "rank %d (%s, pid %d)", p->rank, p->host, p->pid);
    snprintf(why, sizeof why, "%s %s; heard last %.1f s ago: %.3000s", who, how,
             (double)(clock_ns() - p->heard_ns) * 1e-9, p->place);
    close(p->fd);
    p->fd = -1;
    /* Rank 0's end is nobody's loss once this one is done; and who is told of a failure hangs up.
     */
    if (c->leaving && (c->rank != 0 || c->failed[0]))
        return;
    if (was_still(c))
        end_as_still(c, who);
    else
        end_job(c, why);
}

/* ---- what comes ---- */

/* Does somebody wait, besides the peer `but`? */
static bool peers_wait(const rank_link *c, const rank_link_peer *but)
{
    for (int i = 0; i < c->n_peers; i++)
        if (&c->peer[i] != but && c->peer[i].fd >= 0 && c->peer[i].waits)
            return true;
    return false;
}

static void note_beat(rank_link *c, rank_link_peer *p, const char *place, bool waits)
{
    snprintf(p->place, sizeof p->place, "%s", place);
    p->waits = waits;
    atomic_store(&c->others_wait, peers_wait(c, NULL));
}

static void act_on(rank_link *c, rank_link_peer *p, rank_link_kind kind, const char *bytes,
                   size_t size)
{
    char text[CONTROL_TEXT_MAX + 1];
    p->heard_ns = clock_ns();
    snprintf(text, sizeof text, "%.*s", (int)size, bytes);
    const bool beats = kind == CONTROL_BEAT || kind == CONTROL_WAITS;
    if (beats)
        note_beat(c, p, text, kind == CONTROL_WAITS);
    else if (kind == CONTROL_LOST)
        end_job(c, text);
    else if (kind != CONTROL_BYE)
        lose_peer(c, p, "breaks the protocol");
    /* Hanging up tells the other end that its last word has arrived. */
    if (!beats && p->fd >= 0) {
        close(p->fd);
        p->fd = -1;
    }
}

/* Whole frames of what was received; the rest stays. False: not a frame. */
static bool take_frames(rank_link *c, rank_link_peer *p)
{
    size_t at = 0, size;
    rank_link_kind kind;
    while (p->fd >= 0 && p->n_in - at >= CONTROL_HEADER) {
        if (rank_link_header_get(p->in + at, &kind, &size) != ST_OK || size > CONTROL_TEXT_MAX) {
            status_clear();
            return false;
        }
        if (p->n_in - at < CONTROL_HEADER + size)
            break;
        act_on(c, p, kind, (const char *)p->in + at + CONTROL_HEADER, size);
        at += CONTROL_HEADER + size;
    }
    memmove(p->in, p->in + at, p->n_in - at);
    p->n_in -= at;
    return true;
}

static void read_peer(rank_link *c, rank_link_peer *p)
{
    ssize_t n = recv(p->fd, p->in + p->n_in, sizeof p->in - p->n_in, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) { /* a reset is what a process leaves that dies with something unread */
        const bool died = n == 0 || errno == ECONNRESET;
        lose_peer(c, p, died ? "died: its connection is closed" : "is gone: its connection broke");
        return;
    }
    p->n_in += (size_t)n;
    if (!take_frames(c, p))
        lose_peer(c, p, "breaks the protocol");
}

static void turn_away(rank_link *c)
{
    char why[128];
    int fd = accept(c->listener, NULL, NULL);
    if (fd < 0)
        return;
    snprintf(why, sizeof why,
             "a job of %d ranks is complete and at work here; is this another one?", c->size);
    rank_link_refuse(fd, why);
}

/* ---- the thread ---- */

static void beat(rank_link *c)
{
    char place[CONTROL_TEXT_MAX];
    if (c->leaving && (c->rank != 0 || c->failed[0])) /* the last word is said */
        return;
    tell_place(c, place, sizeof place);
    for (int i = 0; i < c->n_peers; i++) {
        rank_link_peer *p = &c->peer[i];
        if (p->fd < 0)
            continue;
        const bool waits = rank_link_is_waiting(c) || peers_wait(c, p);
        /* One that takes nothing has been silent for long as well. */
        status st = rank_link_send(p->fd, waits ? CONTROL_WAITS : CONTROL_BEAT, place,
                                   strlen(place), clock_ns());
        if (st != ST_OK && st != ST_TIMEOUT)
            lose_peer(c, p, "died: its connection is closed");
        if (st != ST_OK)
            status_clear();
    }
}

static void find_silent(rank_link *c)
{
    char how[96];
    for (int i = 0; i < c->n_peers; i++) {
        rank_link_peer *p = &c->peer[i];
        if (p->fd < 0 || clock_ns() - p->heard_ns < c->silence_ns)
            continue;
        snprintf(how, sizeof how, "says nothing for %.1f s: stopped, or cut off",
                 (double)c->silence_ns * 1e-9);
        lose_peer(c, p, how);
    }
}

/* False once nobody is left to wait for. */
static bool wait_for_news(rank_link *c, int64_t until_ns)
{
    struct pollfd *p = c->polled;
    int n = 0;
    bool somebody = false;
    uint64_t woken;
    p[n++] = (struct pollfd){c->wake, POLLIN, 0};
    p[n++] = (struct pollfd){c->listener, POLLIN, 0}; /* -1: passed over */
    for (int i = 0; i < c->n_peers; i++) {
        p[n++] = (struct pollfd){c->peer[i].fd, POLLIN, 0};
        somebody |= c->peer[i].fd >= 0;
    }
    bool ends_badly = c->leaving && (c->failed[0] || atomic_load(&c->over));
    if (c->leaving && (!somebody || (ends_badly && clock_ns() > c->leave_by_ns)))
        return false;
    int64_t left = until_ns - clock_ns();
    if (poll(p, (nfds_t)n, left > 0 ? (int)(left / 1000000) + 1 : 0) <= 0)
        return true;
    if (p[0].revents && read(c->wake, &woken, sizeof woken) < 0)
        return true;
    if (p[1].revents)
        turn_away(c);
    for (int i = 0; i < c->n_peers; i++)
        if (p[2 + i].revents && c->peer[i].fd >= 0)
            read_peer(c, &c->peer[i]);
    return true;
}

/* What this rank says to the others before it goes; they hang up when they have heard it. */
static void say_last_word(rank_link *c)
{
    const char *failed = c->failed;
    rank_link_kind kind = failed[0] ? CONTROL_LOST : CONTROL_BYE;
    int64_t deadline = clock_ns() + LAST_WORD_NS;
    if (atomic_load(&c->over))
        return;
    for (int i = 0; i < c->n_peers; i++)
        if (c->peer[i].fd >= 0 &&
            rank_link_send(c->peer[i].fd, kind, failed, strlen(failed), deadline) != ST_OK)
            status_clear();
}

/* Ends a process that is stuck in its work. */
static void end_process(const rank_link *c)
{
    if (c->refused) { /* and so does not come to say it */
        log_hush(false);
        log_error("the run ends: %s", c->lost);
    }
    log_error("work did not end within %g s of that; the process is ended",
              (double)GRACE_NS * 1e-9);
    fflush(NULL);
    _exit(status_exit_code(ST_UNAVAILABLE));
}

static void see_closing(rank_link *c)
{
    if (c->leaving)
        return;
    pthread_mutex_lock(&c->lock);
    c->leaving = c->closing;
    pthread_mutex_unlock(&c->lock);
    c->leave_by_ns = clock_ns() + LAST_WORD_NS;
    if (c->leaving && (c->rank != 0 || c->failed[0]))
        say_last_word(c);
}

/* One that was stopped itself has not heard the others. */
static void forgive(rank_link *c, int64_t since, int64_t now)
{
    c->still_ns = now - since;
    c->still_until_ns = now;
    for (int i = 0; i < c->n_peers; i++)
        c->peer[i].heard_ns = now;
}

static void *watch_peers(void *of)
{
    rank_link *c = of;
    int64_t next_beat = 0, round = clock_ns(), ended = 0;
    do {
        int64_t now = clock_ns();
        if (now - round > c->silence_ns / 2)
            forgive(c, round, now);
        round = now;
        see_closing(c);
        if (now >= next_beat) {
            beat(c);
            next_beat = now + c->beat_ns;
        }
        if (!atomic_load(&c->over))
            find_silent(c);
        else if (!ended)
            ended = now;
        else if (now - ended > GRACE_NS && !c->leaving)
            end_process(c);
    } while (wait_for_news(c, next_beat));
    return NULL;
}

/* ---- opening and closing ---- */

/* The version, and which build of it: two that differ by a patch do not make one job. */
static status version_text(char out[VERSION_MAX])
{
    char self[STATUS_PATH_MAX], build[HASH_TEXT];
    hash128 h;
    TRY(proc_self_path(self, sizeof self));
    TRY(hash_file(self, &h));
    hash_print(h, build);
    snprintf(out, VERSION_MAX, "trainer " TESSERA_VERSION " (build %.12s)", build);
    return ST_OK;
}

static status meet_ranks(const rank_link_options *o, void *id, rank_link *c)
{
    char host[CONTROL_HOST_MAX] = "?", version[VERSION_MAX];
    TRY(version_text(version));
    gethostname(host, sizeof host - 1);
    rank_link_hello me = {(uint32_t)o->rank, (uint32_t)o->size, (uint32_t)getpid(), host,
                          version,           o->options};
    if (o->rank == 0)
        return rank_link_gather(&o->at, &me, id, o->timeout_s, &c->listener, c->peer);
    return rank_link_come(&o->at, &me, o->timeout_s, id, c->peer);
}

/* Signals are the business of the thread that trains. */
static status start_thread(rank_link *c)
{
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    int rc = pthread_create(&c->thread, NULL, watch_peers, c);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return rc == 0 ? ST_OK : FAIL(ST_OS, "no thread for the control channel: %s", strerror(rc));
}

static void rank_link_free(rank_link **c)
{
    for (int i = 0; i < (*c)->n_peers; i++)
        if ((*c)->peer && (*c)->peer[i].fd >= 0)
            close((*c)->peer[i].fd);
    if ((*c)->listener >= 0)
        close((*c)->listener);
    if ((*c)->wake >= 0)
        close((*c)->wake);
    pthread_mutex_destroy(&(*c)->lock);
    free((*c)->peer);
    free((*c)->polled);
    free(*c);
    *c = NULL;
}

status rank_link_open(const rank_link_options *o, void *id, rank_link **out)
{
    int n = o->rank == 0 ? o->size - 1 : 1;
    rank_link *c = calloc(1, sizeof *c);
    if (!c)
        return FAIL(ST_NO_MEMORY, "no memory for the control channel");
    c->rank = o->rank;
    c->size = o->size;
    c->ledger = o->ledger;
    c->one_machine = o->one_machine;
    c->silence_ns = (int64_t)(o->silence_s * 1e9);
    c->beat_ns = c->silence_ns / BEATS < BEAT_MOST_NS ? c->silence_ns / BEATS : BEAT_MOST_NS;
    c->listener = -1;
    pthread_mutex_init(&c->lock, NULL);
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->peer = calloc((size_t)n, sizeof *c->peer);
    c->polled = calloc((size_t)n + 2, sizeof *c->polled);
    status st = c->wake < 0 || !c->peer || !c->polled
                    ? FAIL(ST_NO_MEMORY, "no memory for the control channel")
                    : meet_ranks(o, id, c);
    if (st == ST_OK) {
        c->n_peers = n;
        st = start_thread(c);
    }
    if (st != ST_OK)
        rank_link_free(&c);
    else
        *out = c;
    return st;
}

/* The two say the same, one of them through another rank. */
static bool is_same(const char *failed, const char *lost)
{
    enum { BEGINNING = 200 }; /* longer ones may be cut */
    char part[BEGINNING + 1];
    snprintf(part, sizeof part, "%s", failed);
    return strstr(lost, part) || strcmp(failed, lost) == 0;
}

/* The last line of a rank that ends before the first step: one that rank 0 says is not said again,
 * and what rank 0 does not say by itself is. */
static void fit_last_line(const rank_link *c, const char *failed)
{
    const bool said = atomic_load(&c->over) && is_same(failed, c->lost);
    const bool heard =
        c->one_machine && !atomic_load(&c->over) && c->step == 0 && c->peer[0].fd < 0;
    if (c->rank != 0)
        log_hush((c->refused && said) || heard);
    else if (c->refused && !said)
        log_error("the run ends: %s", c->lost);
}

status rank_link_close(rank_link **c, const char *failed)
{
    uint64_t one = 1;
    status st = ST_OK;
    if (!*c)
        return ST_OK;
    pthread_mutex_lock(&(*c)->lock);
    if (failed && !atomic_load(&(*c)->over))
        snprintf((*c)->failed, sizeof(*c)->failed, "rank %d failed: %.3000s", (*c)->rank, failed);
    (*c)->closing = true;
    pthread_mutex_unlock(&(*c)->lock);
    if (write((*c)->wake, &one, sizeof one) < 0)
        log_warn("control channel: eventfd: %s", strerror(errno));
    pthread_join((*c)->thread, NULL);
    if (failed)
        fit_last_line(*c, failed);
    else
        st = rank_link_check(*c);
    rank_link_free(c);
    return st;
}
