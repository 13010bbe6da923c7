/* SPDX-License-Identifier: Apache-2.0 */
/* supervisor.c: the loop of `prepd worker`: starts workers, replaces those that end, and tells the
 * dispatcher that it is there. */
#include "prepd/worker/worker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "proto/wire/wire.h"

enum {
    QUICK_MS = 1000,   /* a worker that lives this short may be unable to start */
    QUICK_DEATHS = 16, /* after this many in a row, pause before starting the next */
    PAUSE_MS = 1000,
    FIRST_WAIT_S = 10, /* before a worker is started that the dispatcher sent away; then doubling */
    MOST_WAIT_S = 600,
    LEAVE_LIMIT_MS = 10000, /* time to finish a row after SIGTERM */
    SAY_MS = 1000,          /* between two messages to the dispatcher */
    WHAT_BYTES = 80,
};
static const char HEARD[] = "--heard";
static const int64_t MS = 1000000;

typedef struct kept {
    pid_t pid; /* 0: to be started at start_ns, unless it has left */
    int64_t started_ns, start_ns;
    int quick_deaths; /* in a row */
    int64_t wait_s;   /* how long it was waited for last */
    bool left;
} kept;

typedef struct supervisor {
    const char *endpoint;
    wire *net;
    wire_socket *socket; /* NULL: to be connected */
    wire_msg *scratch;
    int64_t said_ns; /* when we last said on this connection that we are here; 0: not yet */
    bool heard;      /* a dispatcher was there once; from then on it is waited for */
    int64_t away_ns; /* since when there is none; 0 if there is one */
    int64_t tell_ns; /* when to log that next */
    char id[24];
    char **argv;
    int n_argv;   /* words so far; --heard is added later */
    kept *worker; /* [n_workers] */
    int n_workers;
    bool stopping, signalled, stop_now; /* stop_now: after the second signal */
    status outcome;
} supervisor;

static status start_one(const supervisor *crew, kept *held)
{
    const status st = proc_spawn(crew->argv, &held->pid);
    held->started_ns = clock_ns();
    if (st != ST_OK)
        held->pid = 0;
    return st;
}

static bool any_alive(const supervisor *crew)
{
    for (int i = 0; i < crew->n_workers; i++)
        if (crew->worker[i].pid)
            return true;
    return false;
}

/* Starts the workers that are missing. If the system has no process for one more, it is tried again
 * later, unless none could ever be started. */
static status start_missing(supervisor *crew)
{
    for (int i = 0; i < crew->n_workers && !crew->stopping; i++) {
        kept *held = &crew->worker[i];
        if (held->pid || held->left || clock_ns() < held->start_ns)
            continue;
        const status st = start_one(crew, held);
        if (st == ST_OK)
            continue;
        if (held->started_ns == 0 && !any_alive(crew))
            return st;
        log_warn("worker not started: %s", status_text());
        held->start_ns = clock_ns() + PAUSE_MS * MS;
    }
    return ST_OK;
}

/* The exit code that a worker chose, as a status. The worker has logged the reason. */
static status left_because(int code)
{
    if (code == PROC_EXIT_DIFFERS)
        return FAIL(ST_MISMATCH, "a worker was refused (its message is above)");
    for (int i = ST_OK + 1; i < ST_COUNT; i++)
        if (status_exit_code((status)i) == code)
            return FAIL((status)i, "a worker left with exit code %d (its message is above)", code);
    return FAIL(ST_INTERNAL, "a worker left with exit code %d", code);
}

/* True for reasons that may pass, such as no memory or a failing disk; a worker that was refused,
 * misconfigured or told to go is not started again. */
static bool may_pass(int code)
{
    return code == status_exit_code(ST_NO_MEMORY) || code == status_exit_code(ST_IO) ||
           code == status_exit_code(ST_INTERNAL);
}

/* True for ends after which a worker is started again, but not at once: what it did was no
 * protocol to the dispatcher, or the dispatcher has been away or silent for a minute. One that was
 * never there is not waited for, since the address may be wrong. */
static bool comes_back(const supervisor *crew, int code)
{
    return code == status_exit_code(ST_PROTOCOL) ||
           (crew->heard &&
            (code == status_exit_code(ST_UNAVAILABLE) || code == status_exit_code(ST_TIMEOUT)));
}

/* Puts off the start of a worker, longer each time unless the last one lived for long. */
static void put_off(kept *held, int64_t lived_ns, int pid, const char *what)
{
    const bool again = held->wait_s > 0 && lived_ns < MOST_WAIT_S * 1000 * MS;
    held->wait_s = again ? 2 * held->wait_s : FIRST_WAIT_S;
    if (held->wait_s > MOST_WAIT_S)
        held->wait_s = MOST_WAIT_S;
    held->start_ns += held->wait_s * 1000 * MS;
    log_warn("worker left and is started again later pid=%d cause=\"%s\" seconds=%lld", pid, what,
             (long long)held->wait_s);
}

static void record_end(supervisor *crew, kept *held, int wstatus)
{
    char what[WHAT_BYTES];
    const int64_t now = clock_ns();
    const proc_end end = proc_end_of(wstatus, what, sizeof(what));
    const int code = WIFEXITED(wstatus) ? WEXITSTATUS(wstatus) : -1;
    const bool at_work = end == PROC_END_TIME || code == PROC_EXIT_BUSY;
    const bool quick = !at_work && now - held->started_ns < QUICK_MS * MS;
    const int pid = (int)held->pid;
    held->pid = 0;
    held->start_ns = now;
    if (crew->stopping || code == 0) {
        held->left = true;
        return;
    }
    if (code == PROC_EXIT_AGAIN) {
        held->quick_deaths = 0;
        return;
    }
    held->quick_deaths = quick ? held->quick_deaths + 1 : 0;
    if (comes_back(crew, code)) {
        put_off(held, now - held->started_ns, pid, what);
        return;
    }
    if (code == PROC_EXIT_DIFFERS || (end == PROC_END_LEFT && !may_pass(code))) {
        crew->stopping = held->left = true;
        crew->outcome = left_because(code);
        return;
    }
    log_info("worker replaced pid=%d cause=\"%s\"", pid, what);
    if (held->quick_deaths > QUICK_DEATHS)
        held->start_ns += PAUSE_MS * MS;
}

static void reap_workers(supervisor *crew)
{
    int wstatus;
    pid_t pid;
    while ((pid = waitpid(-1, &wstatus, WNOHANG | WUNTRACED)) > 0) {
        for (int i = 0; i < crew->n_workers; i++) {
            if (crew->worker[i].pid != pid)
                continue;
            if (WIFSTOPPED(wstatus))
                kill(pid, SIGKILL); /* someone stopped it; its lease must not wait */
            else
                record_end(crew, &crew->worker[i], wstatus);
        }
    }
}

static void signal_all(const supervisor *crew, int sig)
{
    for (int i = 0; i < crew->n_workers; i++)
        if (crew->worker[i].pid)
            kill(crew->worker[i].pid, sig);
}

static bool any_left_to_keep(const supervisor *crew)
{
    for (int i = 0; i < crew->n_workers; i++)
        if (crew->worker[i].pid || (!crew->worker[i].left && !crew->stopping))
            return true;
    return false;
}

/* Logs that no dispatcher is there, after a second and then every ten. */
static void tell_away(supervisor *crew)
{
    enum { FIRST_MS = 1000, EVERY_MS = 10000 };
    const int64_t now = clock_ns();
    if (wire_greeted(crew->socket)) {
        crew->away_ns = 0;
    } else if (crew->away_ns == 0) {
        crew->away_ns = now;
        crew->tell_ns = now + FIRST_MS * MS;
    } else if (now >= crew->tell_ns) {
        crew->tell_ns = now + EVERY_MS * MS;
        log_info("waiting for the daemon at %s for %.0f s: %s", crew->endpoint,
                 (double)(now - crew->away_ns) * 1e-9,
                 wire_listens(crew->endpoint) == ST_OK ? "nothing answers there" : status_text());
    }
}

/* Tells the dispatcher that this supervisor is there, and reads whether it is to go. A connection
 * that ended is made again, since the daemon may come back. Refused keys are left to the workers to
 * find and report. */
static status attend_dispatcher(supervisor *crew)
{
    char json[48];
    const int64_t now = clock_ns();
    frame head;
    if (!crew->socket) {
        TRY(wire_connect(crew->net, crew->endpoint, &crew->socket));
        if (crew->heard)
            wire_expect(crew->socket);
        crew->said_ns = 0;
    }
    /* The first message waits in the socket for the connection;
     * others are sent once it is there. */
    if (crew->said_ns == 0 || (now - crew->said_ns >= SAY_MS * MS && wire_greeted(crew->socket))) {
        const int length = snprintf(json, sizeof(json), "{\"keeps\":\"%s\"}", crew->id);
        const status sent = wire_send_json(crew->socket, NULL, KIND_JOIN, 0, json, (size_t)length);
        (void)sent; /* if this is lost, so is the connection, which is noticed below */
        crew->said_ns = now;
    }
    if (!crew->heard && wire_greeted(crew->socket)) {
        crew->heard = true;
        crew->argv[crew->n_argv++] = (char *)(uintptr_t)HEARD; /* proc_spawn only reads it */
    }
    tell_away(crew);
    wire_msg_clear(crew->scratch);
    const status st = wire_recv(crew->socket, 0, NULL, crew->scratch);
    if (st != ST_OK && st != ST_TIMEOUT)
        wire_close(&crew->socket);
    if (st == ST_OK && wire_msg_parts(crew->scratch) > 0 &&
        frame_decode(wire_msg_part(crew->scratch, 0), crew->endpoint, &head) == ST_OK &&
        head.kind == KIND_BYE)
        crew->stopping = true;
    return ST_OK;
}

static void told_to_stop(supervisor *crew, int number)
{
    crew->stop_now = crew->signalled;
    crew->signalled = crew->stopping = true;
    log_info("%s signal=%s",
             crew->stop_now
                 ? "stopping at once"
                 : "leaving when what is in work is finished; another signal stops at once",
             strsignal(number));
}

/* The main loop. The connection is opened before any worker is started: it needs threads, and if a
 * limit on processes refused them later, libzmq would abort. */
static status supervise_workers(supervisor *crew, int signals)
{
    enum { TICK_MS = 100 };
    int64_t stop_ns = 0;
    while (any_left_to_keep(crew)) {
        struct pollfd wait = {.fd = signals, .events = POLLIN};
        struct signalfd_siginfo info;
        if (!crew->stopping)
            TRY(attend_dispatcher(crew));
        TRY(start_missing(crew));
        if (poll(&wait, 1, TICK_MS) < 0 && errno != EINTR)
            return FAIL(ST_OS, "cannot wait for signals: %s", strerror(errno));
        while (read(signals, &info, sizeof(info)) == (ssize_t)sizeof(info))
            if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)
                told_to_stop(crew, (int)info.ssi_signo);
        reap_workers(crew);
        if (!crew->stopping)
            continue;
        if (stop_ns == 0) {
            stop_ns = clock_ns();
            signal_all(crew, SIGTERM);
        } else if (crew->stop_now || clock_ns() - stop_ns > LEAVE_LIMIT_MS * MS) {
            signal_all(crew, SIGKILL);
        }
    }
    return crew->outcome;
}

status supervisor_run(char *const *args, int n_args, int n_workers, const char *endpoint,
                      const char *keys)
{
    supervisor crew = {.n_workers = n_workers, .endpoint = endpoint};
    char parent[16];
    int signals = -1;
    status st = ST_OK;
    snprintf(parent, sizeof(parent), "%d", (int)getpid());
    snprintf(crew.id, sizeof(crew.id), "%x-%llx", (unsigned)getpid(),
             (unsigned long long)clock_ns());
    crew.worker = calloc((size_t)n_workers, sizeof(*crew.worker));
    crew.argv = calloc((size_t)n_args + 6, sizeof(*crew.argv));
    if (!crew.worker || !crew.argv) {
        st = FAIL(ST_NO_MEMORY, "no memory for %d workers", n_workers);
        goto done;
    }
    memcpy(crew.argv, args, (size_t)n_args * sizeof(*args));
    crew.argv[n_args] = (char[]){"--parent"};
    crew.argv[n_args + 1] = parent;
    crew.argv[n_args + 2] = (char[]){"--supervisor"};
    crew.argv[n_args + 3] = crew.id;
    crew.n_argv = n_args + 4;
    signal(SIGPIPE, SIG_IGN);               /* the reader of our log may leave */
    TRY_OR(done, proc_signal_fd(&signals)); /* before ZeroMQ's threads */
    TRY_OR(done, wire_new(&crew.net));
    if (keys)
        TRY_OR(done, wire_use_keys(crew.net, keys));
    TRY_OR(done, wire_msg_new(&crew.scratch));
    if (wire_listens(endpoint) == ST_CONFIG) { /* waiting does not change a permission */
        st = ST_CONFIG;
        goto done;
    }
    st = supervise_workers(&crew, signals);
    signal_all(&crew, SIGKILL); /* some are left only after a failure of our own */
done:
    wire_msg_free(&crew.scratch);
    wire_close(&crew.socket);
    wire_free(&crew.net);
    if (signals >= 0)
        close(signals);
    free(crew.worker);
    free(crew.argv);
    return st;
}
