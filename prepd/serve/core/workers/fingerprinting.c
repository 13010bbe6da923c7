/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprinting.c: this daemon's own fingerprints, which a separate process makes, `prepd
 * fingerprint`, since the dispatcher itself never loads image code.
 *
 * The process is started together with the daemon. Meanwhile the data set is read and workers load
 * the same libraries, so nothing waits longer for it. A worker that joins earlier is kept, without
 * TERMS or work, until it can be compared. Fingerprints of the video decoder are made only once the
 * data may hold videos. They are made at the start, even if no worker needs those of rows, because
 * later another build may be on the disk. */
#include <stdio.h>
#include <string.h>

#include "prepd/serve/core/workers/core_workers.h"

enum {
    MAX_DEATHS = 3, /* in a row without a fingerprint: someone kills it, or a library crashes */
    LIMIT_S = 60,   /* a process that takes longer is taken to hang and is killed */
};
static const int64_t PAUSE_NS = 1000000000; /* before the next try if none could be started */

status fingerprinting_start(dispatch *state)
{
    print_maker *maker = &state->maker;
    char only[128] = "";
    if (maker->pid)
        return ST_OK;
    for (int k = 0; k < N_PRINTS; k++) {
        maker->asked[k] = prints_are_wanted(state, (print_kind)k);
        if (maker->asked[k])
            snprintf(only + strlen(only), sizeof only - strlen(only), "%s,", print_names[k]);
    }
    if (!only[0])
        return ST_OK;
    maker->started_ns = state->now_ns;
    return state->outside.start_fingerprinting(state->outside.shell, only, &maker->pid);
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
            peer_limits_refuse(&state->peer_limits, &state->outside, DOOR_WORKERS, &peer, "worker",
                               st);
    }
}

void fingerprinting_line(dispatch *state, const char *line)
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
    prove_all(state);
}

/* Whether the process has told all that it was asked for. Meanwhile more may be wanted, which is no
 * failure of this process. */
static bool has_made_all(const dispatch *state)
{
    for (int k = 0; k < N_PRINTS; k++)
        if (state->maker.asked[k] && !state->fingerprints.of[k][0])
            return false;
    return true;
}

void fingerprinting_ended(dispatch *state)
{
    print_maker *maker = &state->maker;
    maker->pid = 0;
    if (state->stopping || has_made_all(state)) {
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

void fingerprinting_tick(dispatch *state)
{
    print_maker *maker = &state->maker;
    if (maker->pid && state->now_ns - maker->started_ns > LIMIT_S * 1000000000LL) {
        core_warn(state, "the process that makes fingerprints hangs and is killed seconds=%d",
                  LIMIT_S);
        maker->started_ns = state->now_ns;
        state->outside.end_process(state->outside.shell, maker->pid, true);
    }
    if (state->stopping || maker->pid || state->now_ns < maker->not_before_ns ||
        fingerprinting_start(state) == ST_OK)
        return;
    core_warn(state, "the fingerprints of this machine cannot be made yet: %s", status_text());
    maker->pid = 0;
    maker->not_before_ns = state->now_ns + PAUSE_NS;
}
