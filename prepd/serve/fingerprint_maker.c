/* fingerprint_maker.c: has this daemon's own fingerprints made by a child process, `prepd
 * fingerprint`, since the dispatcher itself never loads image code.
 *
 * The child is started together with the daemon, and its output is read in the loop. Meanwhile the
 * data set is read and workers load the same libraries, so nothing waits longer for it. A worker
 * that joins earlier is kept, without TERMS or work, until it can be compared. The fingerprint of
 * the video decoder is made only once the data may hold videos. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/proc.h"
#include "common/model_folder/model_files.h"
#include "common/program/log.h"
#include "prepd/serve/dispatch_state.h"

enum {
    MAX_DEATHS = 3, /* in a row without a fingerprint: someone kills it, or a library crashes */
    LIMIT_S = 60,   /* a child that takes longer is taken to hang and is killed */
};
static const int64_t PAUSE_NS = 1000000000; /* before the next try if no child could be started */

status fingerprint_process_start(dispatch *d)
{
    print_maker *m = &d->maker;
    char self[STATUS_PATH_MAX], parent[16], only[64] = "";
    const char *folder;
    if (m->pid || fingerprints_are_known(d))
        return ST_OK;
    TRY(proc_self_path(self, sizeof self));
    TRY(model_files_folder(d->options, &folder));
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    for (int k = 0; k < N_PRINTS; k++)
        if (prints_are_wanted(d, (print_kind)k))
            snprintf(only + strlen(only), sizeof only - strlen(only), "%s,", print_names[k]);
    char *argv[] = {
        self, (char[]){"fingerprint"}, (char[]){"--parent"},      parent, (char[]){"--only"},
        only, (char[]){"--model"},     (char *)(uintptr_t)folder, NULL};
    m->text_bytes = 0;
    m->started_ns = clock_ns();
    return proc_spawn_reading(argv, &m->pid, &m->fd);
}

/* Takes a line of the child's output: "images HEX" and the like, or "error CODE WORDS". */
static void take_line(dispatch *d, const char *line)
{
    hash128 value;
    int code, at = 0;
    if (sscanf(line, "error %d %n", &code, &at) == 1 && at > 0 && code > ST_OK && code < ST_COUNT) {
        dispatch_fail(d, FAIL((status)code, "the fingerprints of this machine cannot be made: %s",
                              line + at));
        return;
    }
    for (int k = 0; k < N_PRINTS; k++) {
        const size_t n = strlen(print_names[k]);
        if (strncmp(line, print_names[k], n) == 0 && line[n] == ' ' &&
            hash_parse(line + n + 1, &value))
            fingerprints_set(&d->fingerprints, (print_kind)k, value);
    }
}

static void take_lines(dispatch *d)
{
    print_maker *m = &d->maker;
    char *end;
    while ((end = memchr(m->text, '\n', m->text_bytes))) {
        const size_t used = (size_t)(end - m->text) + 1;
        *end = 0;
        take_line(d, m->text);
        m->text_bytes -= used;
        memmove(m->text, m->text + used, m->text_bytes);
    }
    if (m->text_bytes == sizeof m->text)
        m->text_bytes = 0; /* no line with a fingerprint is this long */
}

/* The child has closed its output. The loop reaps its process together with the workers. */
static void has_ended(dispatch *d)
{
    print_maker *m = &d->maker;
    close(m->fd);
    m->pid = 0;
    m->fd = -1;
    if (d->stopping || fingerprints_are_known(d)) {
        m->deaths = 0;
        return;
    }
    if (++m->deaths >= MAX_DEATHS)
        dispatch_fail(d,
                      FAIL(ST_UNAVAILABLE,
                           "the process that makes this machine's fingerprints died %d times in a "
                           "row before it told them; run prepd fingerprint to see why",
                           m->deaths));
}

/* Compares all workers again, after a fingerprint has become known. */
static void prove_all(dispatch *d)
{
    char name[WIRE_PEER_TEXT];
    for (worker_seat *worker = d->seats, *next; worker && !d->stopping; worker = next) {
        const wire_peer peer = worker->peer;
        next = worker->next;
        wire_peer_print(&peer, name);
        const status st = seat_prove(d, worker, name);
        if (st != ST_OK)
            peer_limits_refuse(&d->peer_limits, d->workers, &peer, "worker", st);
    }
}

void fingerprint_process_read(dispatch *d)
{
    print_maker *m = &d->maker;
    ssize_t got = -1;
    while (m->pid &&
           (got = read(m->fd, m->text + m->text_bytes, sizeof m->text - m->text_bytes)) > 0) {
        m->text_bytes += (size_t)got;
        take_lines(d);
        prove_all(d);
    }
    if (m->pid && (got == 0 || (errno != EAGAIN && errno != EINTR)))
        has_ended(d);
    if (m->pid && clock_ns() - m->started_ns > LIMIT_S * 1000000000LL) {
        log_warn("the process that makes fingerprints hangs and is killed seconds=%d", LIMIT_S);
        m->started_ns = clock_ns();
        kill(m->pid, SIGKILL);
    }
    if (!d->stopping && !m->pid && clock_ns() >= m->not_before_ns &&
        fingerprint_process_start(d) != ST_OK) {
        log_warn("the fingerprints of this machine cannot be made yet: %s", status_text());
        m->pid = 0;
        m->not_before_ns = clock_ns() + PAUSE_NS;
    }
}

void fingerprint_process_stop(dispatch *d)
{
    print_maker *m = &d->maker;
    if (!m->pid)
        return;
    kill(m->pid, SIGKILL);
    (void)waitpid(m->pid, NULL, 0); /* it may have been reaped already */
    close(m->fd);
    m->pid = 0;
}
