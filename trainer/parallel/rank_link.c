/* rank_link.c: implements rank_link.h.
 *
 * The thread polls all connections. It sends a beat at regular intervals, acts on what arrives, and
 * looks for ranks that have been silent for too long. Ranks other than 0 are connected to rank 0
 * alone, so rank 0 passes on what it hears of a lost rank. The first cause that a rank hears of is
 * the one it keeps (`lost`); whatever fails afterwards is a consequence. A rank that ends says its
 * last word, BYE or LOST, and the other end hangs up to show that it was received. */
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
/* GRACE_NS: how long the work of this process may take to end once the job is over. LAST_WORD_NS:
 * how long sending the last word may take. */
static const int64_t GRACE_NS = INT64_C(5) * 1000 * 1000 * 1000;
static const int64_t LAST_WORD_NS = INT64_C(2) * 1000 * 1000 * 1000;
/* A rank that was stopped takes the end of the others as its own doing for this long after it
 * continues. */
static const int64_t STILL_TOLD_NS = INT64_C(5) * 1000 * 1000 * 1000;
/* There are BEATS beats within the silence that counts as a loss, but they are at most BEAT_MOST_NS
 * apart. */
enum { BEATS = 5 };
static const int64_t BEAT_MOST_NS = INT64_C(1000) * 1000 * 1000;

struct rank_link {
    int rank, size;
    comm_ledger *ledger;
    int64_t silence_ns, beat_ns;
    int listener;         /* of rank 0; -1: none */
    int wake;             /* an eventfd that wakes the thread */
    rank_link_peer *peer; /* [n_peers]: on rank 0 all others, on the others rank 0 */
    int n_peers;
    struct pollfd *polled; /* [n_peers + 2]: the thread's */
    pthread_t thread;
    bool leaving; /* the thread has seen `closing` */
    bool refused; /* the job ended before its first step, because a rank said that it failed */
    bool one_machine;
    int64_t leave_by_ns;    /* until when the thread waits for its last word to be received */
    int64_t still_ns;       /* how long this process was stopped the last time */
    int64_t still_until_ns; /* when it went on */

    pthread_mutex_t lock; /* guards what follows */
    int64_t step;         /* 0: before the first one */
    uint64_t sample[IDS_TOLD];
    int64_t n_samples;
    bool closing;
    char failed[CONTROL_TEXT_MAX]; /* what happened to this rank; "": nothing */
    char lost[CONTROL_TEXT_MAX];   /* which rank ended the job and how; written before `over` */
    atomic_bool over;
    _Atomic(const char *) waits; /* what this rank waits for; NULL: nothing */
    atomic_bool others_wait;
};

/* ---- where this rank is ---- */

static void tell_place(rank_link *link, char *out, size_t size)
{
    comm_now now = comm_ledger_now(link->ledger);
    pthread_mutex_lock(&link->lock);
    size_t count = 0;
    if (link->step == 0)
        count = words_add(out, size, count, "before the first step");
    else
        count = words_add(out, size, count, "step %" PRId64, link->step);
    if (now.what) {
        count = words_add(out, size, count, ", %s %s: %s", now.inside ? "in" : "after",
                          comm_kind_name(now.kind), now.what);
        if (now.layer >= 0)
            count = words_add(out, size, count, " of layer %" PRId64, now.layer);
        count = words_add(out, size, count, " over %s", now.group);
        if (now.inside)
            count = words_add(out, size, count, " for %.1f s",
                              (double)(clock_ns() - now.since_ns) * 1e-9);
    }
    if (link->n_samples > 0)
        count = words_add(out, size, count, ", samples");
    for (int64_t i = 0; i < link->n_samples && i < IDS_TOLD && count + 32 < size; i++)
        count = words_add(out, size, count, " %" PRIu64, link->sample[i]);
    if (link->n_samples > IDS_TOLD)
        count = words_add(out, size, count, " .. (%" PRId64 ")", link->n_samples);
    const char *waits = atomic_load(&link->waits);
    if (waits)
        words_add(out, size, count, ", waiting for %s", waits);
    pthread_mutex_unlock(&link->lock);
}

void rank_link_waits(rank_link *link, const char *what)
{
    if (link)
        atomic_store(&link->waits, what);
}

bool rank_link_is_waiting(rank_link *link)
{
    return atomic_load(&link->waits) != NULL;
}

bool rank_link_others_wait(rank_link *link)
{
    return atomic_load(&link->others_wait);
}

void rank_link_at_step(rank_link *link, int64_t step, const uint64_t *sample, int64_t count)
{
    if (!link)
        return;
    pthread_mutex_lock(&link->lock);
    link->step = step;
    link->n_samples = count;
    memcpy(link->sample, sample, (size_t)(count < IDS_TOLD ? count : IDS_TOLD) * sizeof *sample);
    pthread_mutex_unlock(&link->lock);
}

status rank_link_check(rank_link *link)
{
    if (!link || !atomic_load(&link->over))
        return ST_OK;
    return FAIL(ST_UNAVAILABLE, "%s", link->lost); /* written once, before over */
}

/* ---- the end ---- */

/* Whether this cause is what a rank said of itself (rank_link_close). */
static bool is_own_word(const char *why)
{
    int rank, used = 0;
    return sscanf(why, "rank %d failed: %n", &rank, &used) == 1 && used > 0;
}

/* Logs why the job ends. Before the first step all ranks fail with the same error; if they are on
 * one machine, rank 0 prints it once when it ends, and the others only write it to their logs. */
static void tell_end(rank_link *link, const char *why)
{
    char place[CONTROL_TEXT_MAX];
    tell_place(link, place, sizeof place);
    link->refused = link->one_machine && link->step == 0 && is_own_word(why);
    if (link->refused && link->rank == 0)
        return;
    log_hush(link->refused);
    log_error("the run ends: %s; this rank: %s", why, place);
}

/* Ends the job with this cause: logs it, and on rank 0 tells the others. Only the first cause
 * counts. */
static void end_job(rank_link *link, const char *why)
{
    if (atomic_load(&link->over))
        return;
    snprintf(link->lost, sizeof link->lost, "%s", why);
    atomic_store(&link->over, true);
    tell_end(link, why);
    for (int i = 0; link->rank == 0 && i < link->n_peers; i++)
        if (link->peer[i].fd >= 0 && rank_link_send(link->peer[i].fd, CONTROL_LOST, link->lost,
                                                    strlen(link->lost), clock_ns()) != ST_OK)
            status_clear(); /* it may be the one that is lost */
}

/* Whether this rank was stopped until a moment ago, for so long that the others took it for lost.
 * In that case it is itself the cause of their end. */
static bool was_still(const rank_link *link)
{
    return link->still_ns + link->beat_ns >= link->silence_ns &&
           clock_ns() - link->still_until_ns < STILL_TOLD_NS;
}

static void end_as_still(rank_link *link, const char *who)
{
    char why[CONTROL_TEXT_MAX], host[CONTROL_HOST_MAX] = "?";
    gethostname(host, sizeof host - 1);
    snprintf(why, sizeof why,
             "rank %d (%s, pid %d), this one, did nothing for %.1f s because it was stopped "
             "(SIGSTOP) or "
             "its machine was; the other ranks, %s among them, have ended without it",
             link->rank, host, (int)getpid(), (double)link->still_ns * 1e-9, who);
    end_job(link, why);
}

static void lose_peer(rank_link *link, rank_link_peer *peer, const char *how)
{
    char why[CONTROL_TEXT_MAX], who[CONTROL_HOST_MAX + 64];
    if (peer->rank == 0)
        snprintf(who, sizeof who, "rank 0 (%s)", peer->host);
    else
        snprintf(who, sizeof who, "rank %d (%s, pid %d)", peer->rank, peer->host, peer->pid);
    snprintf(why, sizeof why, "%s %s; heard last %.1f s ago: %.3000s", who, how,
             (double)(clock_ns() - peer->heard_ns) * 1e-9, peer->place);
    close(peer->fd);
    peer->fd = -1;
    /* This is no loss: rank 0 may end once this rank is done, and a rank that was told of this
     * one's failure hangs up. */
    if (link->leaving && (link->rank != 0 || link->failed[0]))
        return;
    if (was_still(link))
        end_as_still(link, who);
    else
        end_job(link, why);
}

/* ---- what comes ---- */

/* Whether a rank other than the peer `but` waits. */
static bool peers_wait(const rank_link *link, const rank_link_peer *but)
{
    for (int i = 0; i < link->n_peers; i++)
        if (&link->peer[i] != but && link->peer[i].fd >= 0 && link->peer[i].waits)
            return true;
    return false;
}

static void note_beat(rank_link *link, rank_link_peer *peer, const char *place, bool waits)
{
    snprintf(peer->place, sizeof peer->place, "%s", place);
    peer->waits = waits;
    atomic_store(&link->others_wait, peers_wait(link, NULL));
}

static void act_on(rank_link *link, rank_link_peer *peer, rank_link_kind kind, const char *bytes,
                   size_t size)
{
    char text[CONTROL_TEXT_MAX + 1];
    peer->heard_ns = clock_ns();
    snprintf(text, sizeof text, "%.*s", (int)size, bytes);
    const bool beats = kind == CONTROL_BEAT || kind == CONTROL_WAITS;
    if (beats)
        note_beat(link, peer, text, kind == CONTROL_WAITS);
    else if (kind == CONTROL_LOST)
        end_job(link, text);
    else if (kind != CONTROL_BYE)
        lose_peer(link, peer, "breaks the protocol");
    /* Hanging up tells the other end that its last word was received. */
    if (!beats && peer->fd >= 0) {
        close(peer->fd);
        peer->fd = -1;
    }
}

/* Acts on the complete messages that were received and keeps the rest. Returns false if the bytes
 * are not a message. */
static bool take_frames(rank_link *link, rank_link_peer *peer)
{
    size_t at = 0, size;
    rank_link_kind kind;
    while (peer->fd >= 0 && peer->n_in - at >= CONTROL_HEADER) {
        if (rank_link_header_get(peer->in + at, &kind, &size) != ST_OK || size > CONTROL_TEXT_MAX) {
            status_clear();
            return false;
        }
        if (peer->n_in - at < CONTROL_HEADER + size)
            break;
        act_on(link, peer, kind, (const char *)peer->in + at + CONTROL_HEADER, size);
        at += CONTROL_HEADER + size;
    }
    memmove(peer->in, peer->in + at, peer->n_in - at);
    peer->n_in -= at;
    return true;
}

static void read_peer(rank_link *link, rank_link_peer *peer)
{
    ssize_t got = recv(peer->fd, peer->in + peer->n_in, sizeof peer->in - peer->n_in, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) { /* a process that dies with unread bytes leaves a reset */
        const bool died = got == 0 || errno == ECONNRESET;
        lose_peer(link, peer,
                  died ? "died: its connection is closed" : "is gone: its connection broke");
        return;
    }
    peer->n_in += (size_t)got;
    if (!take_frames(link, peer))
        lose_peer(link, peer, "breaks the protocol");
}

static void turn_away(rank_link *link)
{
    char why[128];
    int fd = accept(link->listener, NULL, NULL);
    if (fd < 0)
        return;
    snprintf(why, sizeof why,
             "a job of %d ranks is complete and running here; is this another one?", link->size);
    rank_link_refuse(fd, why);
}

/* ---- the thread ---- */

static void beat(rank_link *link)
{
    char place[CONTROL_TEXT_MAX];
    if (link->leaving && (link->rank != 0 || link->failed[0])) /* the last word was sent */
        return;
    tell_place(link, place, sizeof place);
    for (int i = 0; i < link->n_peers; i++) {
        rank_link_peer *peer = &link->peer[i];
        if (peer->fd < 0)
            continue;
        const bool waits = rank_link_is_waiting(link) || peers_wait(link, peer);
        /* A peer that accepts no bytes has also been silent, so find_silent will notice it. */
        status st = rank_link_send(peer->fd, waits ? CONTROL_WAITS : CONTROL_BEAT, place,
                                   strlen(place), clock_ns());
        if (st != ST_OK && st != ST_TIMEOUT)
            lose_peer(link, peer, "died: its connection is closed");
        if (st != ST_OK)
            status_clear();
    }
}

static void find_silent(rank_link *link)
{
    char how[96];
    for (int i = 0; i < link->n_peers; i++) {
        rank_link_peer *peer = &link->peer[i];
        if (peer->fd < 0 || clock_ns() - peer->heard_ns < link->silence_ns)
            continue;
        snprintf(how, sizeof how, "has said nothing for %.1f s: it is stopped or cut off",
                 (double)link->silence_ns * 1e-9);
        lose_peer(link, peer, how);
    }
}

/* Waits until until_ns for messages, connections and wake-ups, and acts on them. Returns false once
 * this rank is leaving and there is no other to wait for. */
static bool wait_for_news(rank_link *link, int64_t until_ns)
{
    struct pollfd *wait = link->polled;
    int count = 0;
    bool connected = false;
    uint64_t woken;
    wait[count++] = (struct pollfd){link->wake, POLLIN, 0};
    wait[count++] = (struct pollfd){link->listener, POLLIN, 0}; /* poll skips a descriptor of -1 */
    for (int i = 0; i < link->n_peers; i++) {
        wait[count++] = (struct pollfd){link->peer[i].fd, POLLIN, 0};
        connected |= link->peer[i].fd >= 0;
    }
    bool ends_badly = link->leaving && (link->failed[0] || atomic_load(&link->over));
    if (link->leaving && (!connected || (ends_badly && clock_ns() > link->leave_by_ns)))
        return false;
    int64_t left = until_ns - clock_ns();
    if (poll(wait, (nfds_t)count, left > 0 ? (int)(left / 1000000) + 1 : 0) <= 0)
        return true;
    if (wait[0].revents && read(link->wake, &woken, sizeof woken) < 0)
        return true;
    if (wait[1].revents)
        turn_away(link);
    for (int i = 0; i < link->n_peers; i++)
        if (wait[2 + i].revents && link->peer[i].fd >= 0)
            read_peer(link, &link->peer[i]);
    return true;
}

/* Tells the others how this rank ended. They hang up when they have received it. */
static void say_last_word(rank_link *link)
{
    const char *failed = link->failed;
    rank_link_kind kind = failed[0] ? CONTROL_LOST : CONTROL_BYE;
    int64_t deadline = clock_ns() + LAST_WORD_NS;
    if (atomic_load(&link->over))
        return;
    for (int i = 0; i < link->n_peers; i++)
        if (link->peer[i].fd >= 0 &&
            rank_link_send(link->peer[i].fd, kind, failed, strlen(failed), deadline) != ST_OK)
            status_clear();
}

/* Ends a process that is stuck in its work. */
static void end_process(const rank_link *link)
{
    if (link->refused) { /* it was to be printed when the work ends, which will not happen */
        log_hush(false);
        log_error("the run ends: %s", link->lost);
    }
    log_error("this rank did not leave its work within %g s after the end of the job; its process "
              "is ended",
              (double)GRACE_NS * 1e-9);
    fflush(NULL);
    _exit(status_exit_code(ST_UNAVAILABLE));
}

/* Notices that rank_link_close was called. */
static void see_closing(rank_link *link)
{
    if (link->leaving)
        return;
    pthread_mutex_lock(&link->lock);
    link->leaving = link->closing;
    pthread_mutex_unlock(&link->lock);
    link->leave_by_ns = clock_ns() + LAST_WORD_NS;
    if (link->leaving && (link->rank != 0 || link->failed[0]))
        say_last_word(link);
}

/* This process was itself stopped and so could not hear the others; they do not count as silent. */
static void forgive(rank_link *link, int64_t since, int64_t now)
{
    link->still_ns = now - since;
    link->still_until_ns = now;
    for (int i = 0; i < link->n_peers; i++)
        link->peer[i].heard_ns = now;
}

static void *watch_peers(void *of)
{
    rank_link *link = of;
    int64_t next_beat = 0, round = clock_ns(), ended = 0;
    do {
        int64_t now = clock_ns();
        if (now - round > link->silence_ns / 2)
            forgive(link, round, now);
        round = now;
        see_closing(link);
        if (now >= next_beat) {
            beat(link);
            next_beat = now + link->beat_ns;
        }
        if (!atomic_load(&link->over))
            find_silent(link);
        else if (!ended)
            ended = now;
        else if (now - ended > GRACE_NS && !link->leaving)
            end_process(link);
    } while (wait_for_news(link, next_beat));
    return NULL;
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

static status meet_ranks(const rank_link_options *options, void *id, rank_link *link)
{
    char host[CONTROL_HOST_MAX] = "?", version[VERSION_MAX];
    TRY(version_text(version));
    gethostname(host, sizeof host - 1);
    rank_link_hello me = {
        (uint32_t)options->rank, (uint32_t)options->size, (uint32_t)getpid(), host, version,
        options->options};
    if (options->rank == 0)
        return rank_link_gather(&options->at, &me, id, options->timeout_s, &link->listener,
                                link->peer);
    return rank_link_come(&options->at, &me, options->timeout_s, id, link->peer);
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
    for (int i = 0; i < (*link)->n_peers; i++)
        if ((*link)->peer && (*link)->peer[i].fd >= 0)
            close((*link)->peer[i].fd);
    if ((*link)->listener >= 0)
        close((*link)->listener);
    if ((*link)->wake >= 0)
        close((*link)->wake);
    pthread_mutex_destroy(&(*link)->lock);
    free((*link)->peer);
    free((*link)->polled);
    free(*link);
    *link = NULL;
}

status rank_link_open(const rank_link_options *options, void *id, rank_link **out)
{
    int count = options->rank == 0 ? options->size - 1 : 1;
    rank_link *link = calloc(1, sizeof *link);
    if (!link)
        return FAIL(ST_NO_MEMORY, "no memory for the rank link");
    link->rank = options->rank;
    link->size = options->size;
    link->ledger = options->ledger;
    link->one_machine = options->one_machine;
    link->silence_ns = (int64_t)(options->silence_s * 1e9);
    link->beat_ns =
        link->silence_ns / BEATS < BEAT_MOST_NS ? link->silence_ns / BEATS : BEAT_MOST_NS;
    link->listener = -1;
    pthread_mutex_init(&link->lock, NULL);
    link->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    link->peer = calloc((size_t)count, sizeof *link->peer);
    link->polled = calloc((size_t)count + 2, sizeof *link->polled);
    status st = link->wake < 0 || !link->peer || !link->polled
                    ? FAIL(ST_NO_MEMORY, "no memory for the rank link")
                    : meet_ranks(options, id, link);
    if (st == ST_OK) {
        link->n_peers = count;
        st = start_thread(link);
    }
    if (st != ST_OK)
        rank_link_free(&link);
    else
        *out = link;
    return st;
}

/* Whether this rank's own failure is the cause that the job ended with, either heard back through
 * another rank or met by both. */
static bool is_same(const char *failed, const char *lost)
{
    enum { BEGINNING = 200 }; /* the rest may have been cut off */
    char part[BEGINNING + 1];
    snprintf(part, sizeof part, "%s", failed);
    return strstr(lost, part) || strcmp(failed, lost) == 0;
}

/* Decides about the last line of a rank that ends before the first step: the others do not print
 * again what rank 0 prints, and rank 0 prints a cause that is not its own. */
static void fit_last_line(const rank_link *link, const char *failed)
{
    const bool said = atomic_load(&link->over) && is_same(failed, link->lost);
    const bool heard =
        link->one_machine && !atomic_load(&link->over) && link->step == 0 && link->peer[0].fd < 0;
    if (link->rank != 0)
        log_hush((link->refused && said) || heard);
    else if (link->refused && !said)
        log_error("the run ends: %s", link->lost);
}

status rank_link_close(rank_link **link, const char *failed)
{
    uint64_t one = 1;
    status st = ST_OK;
    if (!*link)
        return ST_OK;
    pthread_mutex_lock(&(*link)->lock);
    if (failed && !atomic_load(&(*link)->over))
        snprintf((*link)->failed, sizeof(*link)->failed, "rank %d failed: %.3000s", (*link)->rank,
                 failed);
    (*link)->closing = true;
    pthread_mutex_unlock(&(*link)->lock);
    if (write((*link)->wake, &one, sizeof one) < 0)
        log_warn("rank link: its thread cannot be woken: eventfd: %s", strerror(errno));
    pthread_join((*link)->thread, NULL);
    if (failed)
        fit_last_line(*link, failed);
    else
        st = rank_link_check(*link);
    rank_link_free(link);
    return st;
}
