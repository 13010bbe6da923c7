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

status fingerprint_process_start(dispatch *state)
{
    print_maker *maker = &state->maker;
    char self[STATUS_PATH_MAX], parent[16], only[64] = "";
    const char *folder;
    if (maker->pid || fingerprints_are_known(state))
        return ST_OK;
    TRY(proc_self_path(self, sizeof self));
    TRY(model_files_folder(state->options, &folder));
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    for (int k = 0; k < N_PRINTS; k++)
        if (prints_are_wanted(state, (print_kind)k))
            snprintf(only + strlen(only), sizeof only - strlen(only), "%s,", print_names[k]);
    char *argv[] = {
        self, (char[]){"fingerprint"}, (char[]){"--parent"},      parent, (char[]){"--only"},
        only, (char[]){"--model"},     (char *)(uintptr_t)folder, NULL};
    maker->text_bytes = 0;
    maker->started_ns = clock_ns();
    return proc_spawn_reading(argv, &maker->pid, &maker->fd);
}

/* Takes a line of the child's output: "images HEX" and the like, or "error CODE WORDS". */
static void take_line(dispatch *state, const char *line)
{
    hash128 value;
    int code, at = 0;
    if (sscanf(line, "error %d %n", &code, &at) == 1 && at > 0 && code > ST_OK && code < ST_COUNT) {
        dispatch_fail(
            state,
            FAIL((status)code, "the fingerprints of this machine cannot be made: %s", line + at));
        return;
    }
    for (int k = 0; k < N_PRINTS; k++) {
        const size_t length = strlen(print_names[k]);
        if (strncmp(line, print_names[k], length) == 0 && line[length] == ' ' &&
            hash_parse(line + length + 1, &value))
            fingerprints_set(&state->fingerprints, (print_kind)k, value);
    }
}

static void take_lines(dispatch *state)
{
    print_maker *maker = &state->maker;
    char *end;
    while ((end = memchr(maker->text, '\n', maker->text_bytes))) {
        const size_t used = (size_t)(end - maker->text) + 1;
        *end = 0;
        take_line(state, maker->text);
        maker->text_bytes -= used;
        memmove(maker->text, maker->text + used, maker->text_bytes);
    }
    if (maker->text_bytes == sizeof maker->text)
        maker->text_bytes = 0; /* no line with a fingerprint is this long */
}

/* The child has closed its output. The loop reaps its process together with the workers. */
static void has_ended(dispatch *state)
{
    print_maker *maker = &state->maker;
    close(maker->fd);
    maker->pid = 0;
    maker->fd = -1;
    if (state->stopping || fingerprints_are_known(state)) {
        maker->deaths = 0;
        return;
    }
    if (++maker->deaths >= MAX_DEATHS)
        dispatch_fail(state,
                      FAIL(ST_UNAVAILABLE,
                           "the process that makes this machine's fingerprints died %d times in a "
                           "row before it told them; run prepd fingerprint to see why",
                           maker->deaths));
}

/* Compares all workers again, after a fingerprint has become known. */
static void prove_all(dispatch *state)
{
    char name[WIRE_PEER_TEXT];
    for (worker_seat *worker = state->seats, *next; worker && !state->stopping; worker = next) {
        const wire_peer peer = worker->peer;
        next = worker->next;
        wire_peer_print(&peer, name);
        const status st = seat_prove(state, worker, name);
        if (st != ST_OK)
            peer_limits_refuse(&state->peer_limits, state->workers, &peer, "worker", st);
    }
}

void fingerprint_process_read(dispatch *state)
{
    print_maker *maker = &state->maker;
    ssize_t got = -1;
    while (maker->pid && (got = read(maker->fd, maker->text + maker->text_bytes,
                                     sizeof maker->text - maker->text_bytes)) > 0) {
        maker->text_bytes += (size_t)got;
        take_lines(state);
        prove_all(state);
    }
    if (maker->pid && (got == 0 || (errno != EAGAIN && errno != EINTR)))
        has_ended(state);
    if (maker->pid && clock_ns() - maker->started_ns > LIMIT_S * 1000000000LL) {
        log_warn("the process that makes fingerprints hangs and is killed seconds=%d", LIMIT_S);
        maker->started_ns = clock_ns();
        kill(maker->pid, SIGKILL);
    }
    if (!state->stopping && !maker->pid && clock_ns() >= maker->not_before_ns &&
        fingerprint_process_start(state) != ST_OK) {
        log_warn("the fingerprints of this machine cannot be made yet: %s", status_text());
        maker->pid = 0;
        maker->not_before_ns = clock_ns() + PAUSE_NS;
    }
}

void fingerprint_process_stop(dispatch *state)
{
    print_maker *maker = &state->maker;
    if (!maker->pid)
        return;
    kill(maker->pid, SIGKILL);
    (void)waitpid(maker->pid, NULL, 0); /* it may have been reaped already */
    close(maker->fd);
    maker->pid = 0;
}
