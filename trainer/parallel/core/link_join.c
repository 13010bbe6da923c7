/* SPDX-License-Identifier: Apache-2.0 */
/* link_join.c: how the ranks of a job find each other, as part of link_core.h.
 *
 *   other rank                        rank 0
 *   connect, retried until it works   accept
 *   HELLO: who it is, its options  -> compared with rank 0's own
 *                                  <- REFUSE: why, and the connection ends
 *                                  <- WELCOME: the engine's id, when all ranks have come
 *
 * Rank 0 refuses, with the reason, ranks that do not belong to its job: those with another number
 * of ranks, another build, or other options. Then the job cannot run, and all that came are told.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/words.h"
#include "trainer/parallel/core/link_state.h"

/* RETRY_NS: between two attempts to reach rank 0. */
enum { RETRY_NS = 100 * 1000 * 1000, NAMED = 512 };

/* Joining has failed with the last note. Rank 0 first tells those that came. */
static void fail_joining(link_core *core, status code)
{
    core->code = code;
    snprintf(core->why, sizeof core->why, "%s", status_text());
    core->phase = LINK_FAILING;
    for (int i = 0; i < core->n_conns; i++)
        if (core->conn[i].state == CONN_PEER || core->conn[i].state == CONN_NEW) {
            if (core->rank == 0)
                link_refuse(core, i, core->why);
            else
                link_drop(core, i);
        }
}

/* Ends joining once nobody is left who could still be reading why it failed. */
static void end_failing(link_core *core)
{
    for (int i = 0; i < core->n_conns; i++)
        if (core->conn[i].state != CONN_NONE)
            return;
    core->phase = LINK_OUT;
    link_answer(core, (link_action){.kind = LINK_FAILED, .code = core->code, .text = core->why});
}

static void set_peer(link_core *core, int index, int conn, const rank_link_hello *said)
{
    link_peer *const peer = &core->peer[index];
    *peer = (link_peer){
        .conn = conn, .rank = (int)said->rank, .pid = (int)said->pid, .heard_ns = core->now.ns};
    snprintf(peer->host, sizeof peer->host, "%s", said->host);
    snprintf(peer->place, sizeof peer->place, "starting");
    core->conn[conn].state = CONN_PEER;
    core->conn[conn].peer = index;
}

static void begin_running(link_core *core)
{
    core->phase = LINK_RUNNING;
    core->next_beat_ns = core->now.ns;
    for (int i = 0; i < core->n_peers; i++)
        core->peer[i].heard_ns = core->now.ns;
    link_answer(core,
                (link_action){.kind = LINK_JOINED, .bytes = core->id, .size = sizeof core->id});
}

/* ---- rank 0 ---- */

/* ST_CONFIG if the other rank does not fit this job, which then cannot run. */
static status check_hello(const rank_link_hello *me, const rank_link_hello *other)
{
    char difference[1024];
    if (other->size != me->size)
        return FAIL(ST_CONFIG, "rank %u on %s was started as one of %u ranks, rank 0 on %s of %u",
                    other->rank, other->host, other->size, me->host, me->size);
    if (strcmp(other->version, me->version) != 0)
        return FAIL(ST_CONFIG,
                    "rank %u on %s is %s, rank 0 on %s is %s: all ranks must run the same build",
                    other->rank, other->host, other->version, me->host, me->version);
    if (rank_link_options_differ(me->options, other->options, difference, sizeof difference))
        return FAIL(ST_CONFIG, "rank %u on %s has other options than rank 0 on %s: %s", other->rank,
                    other->host, me->host, difference);
    return ST_OK;
}

/* A process that does not belong to this job is told so, with the last note,
 * and disturbs no one. */
static void refuse_stranger(link_core *core, int conn)
{
    char words[1200];
    const char *why = link_keep(core, status_text());
    snprintf(words, sizeof words, "a process that connected to rank 0 is refused: %.1000s", why);
    link_answer(core, (link_action){.kind = LINK_WARN, .text = link_keep(core, words)});
    link_refuse(core, conn, why);
}

static void refuse_second(link_core *core, int conn, const rank_link_hello *said)
{
    char words[512], why[128];
    snprintf(why, sizeof why, "rank %u has connected already: are two jobs using the same port?",
             said->rank);
    snprintf(words, sizeof words, "rank %u on %.128s (pid %u) is refused: %s", said->rank,
             said->host, said->pid, why);
    link_answer(core, (link_action){.kind = LINK_WARN, .text = link_keep(core, words)});
    link_refuse(core, conn, link_keep(core, why));
}

static void welcome_all(link_core *core)
{
    for (int i = 0; i < core->n_peers; i++)
        link_send(core, core->peer[i].conn, CONTROL_WELCOME, core->id, sizeof core->id);
    begin_running(core);
}

static void greet_rank(link_core *core, int conn, const uint8_t *bytes, size_t size)
{
    rank_link_hello said;
    if (rank_link_hello_get(span_of(bytes, size), &said) != ST_OK) {
        refuse_stranger(core, conn);
        return;
    }
    const status fits = check_hello(&core->me, &said);
    if (fits != ST_OK) {
        fail_joining(core, fits);
    } else if (said.rank == 0 || said.rank >= core->me.size ||
               core->peer[said.rank - 1].conn >= 0) {
        refuse_second(core, conn, &said);
    } else {
        set_peer(core, (int)said.rank - 1, conn, &said);
        if (++core->here == core->n_peers)
            welcome_all(core);
    }
}

static status ranks_missing(const link_core *core)
{
    char names[NAMED] = "";
    size_t used = 0;
    int missing = 0;
    for (int i = 0; i < core->n_peers; i++) {
        if (core->peer[i].conn >= 0)
            continue;
        missing++;
        if (used + 16 < sizeof names) /* a number cut short would name another rank */
            used = words_add(names, sizeof names, used, " %d", core->peer[i].rank);
    }
    return FAIL(ST_TIMEOUT, "%d of %d ranks did not come to %s port %d within %g s: rank%s%s",
                missing, core->size, core->at_host, core->at_port, (double)core->timeout_ns * 1e-9,
                missing == 1 ? "" : "s", names);
}

/* Those that connected and say nothing, or were refused and do not hang up. */
static void end_late(link_core *core)
{
    for (int i = 0; i < core->n_conns; i++) {
        const link_conn *late = &core->conn[i];
        if (late->state == CONN_REFUSED && core->now.ns >= late->until_ns) {
            link_drop(core, i);
        } else if (late->state == CONN_NEW && core->now.ns >= late->until_ns) {
            (void)FAIL(ST_TIMEOUT, "the other end does not answer");
            refuse_stranger(core, i);
        }
    }
}

/* ---- the others ---- */

/* The failure of the last note, met on the way to rank 0. */
static void fail_coming(link_core *core, status code)
{
    fail_joining(core, status_context(code, "rank 0 at %s port %d", core->at_host, core->at_port));
}

static void be_welcomed(link_core *core, rank_link_kind kind, const uint8_t *bytes, size_t size)
{
    if (kind == CONTROL_REFUSE) {
        fail_coming(core,
                    FAIL(ST_CONFIG, "it refused this rank: %.*s", (int)size, (const char *)bytes));
    } else if (kind != CONTROL_WELCOME || size != CONTROL_ID_BYTES) {
        fail_coming(core, FAIL(ST_PROTOCOL, "it answered with a message of kind %d", (int)kind));
    } else {
        memcpy(core->id, bytes, size);
        begin_running(core);
    }
}

static void try_again(link_core *core)
{
    core->retry_ns = INT64_MAX;
    link_answer(core, (link_action){.kind = LINK_CONNECT, .until_ns = core->deadline_ns});
}

void link_core_not_connected(link_core *core, link_now now, const char *why)
{
    link_begin(core, now);
    if (now.ns < core->deadline_ns) {
        core->retry_ns = now.ns + RETRY_NS;
        return;
    }
    fail_joining(core, FAIL(ST_TIMEOUT, "rank 0 cannot be reached at %s port %d within %g s: %s",
                            core->at_host, core->at_port, (double)core->timeout_ns * 1e-9, why));
    end_failing(core);
}

/* ---- both ---- */

void join_connected(link_core *core, int conn)
{
    const rank_link_hello rank_0 = {.rank = 0, .host = core->at_host};
    if (core->rank == 0) {
        core->conn[conn].state = CONN_NEW;
        core->conn[conn].until_ns = core->now.ns + HELLO_NS;
        if (core->phase == LINK_FAILING)
            link_refuse(core, conn, core->why);
        return;
    }
    set_peer(core, 0, conn, &rank_0);
    link_send(core, conn, CONTROL_HELLO, core->hello, core->hello_size);
    /* Rank 0 answers when all have come, or its own time is up, which began before now. It then
     * says which ranks are missing. */
    core->deadline_ns = core->now.ns + core->timeout_ns + 2 * HELLO_NS;
}

void join_message(link_core *core, int conn, rank_link_kind kind, const uint8_t *bytes, size_t size)
{
    if (core->rank != 0) {
        be_welcomed(core, kind, bytes, size);
    } else if (core->conn[conn].state == CONN_PEER) { /* it has not been answered yet */
        const link_peer *early = &core->peer[core->conn[conn].peer];
        fail_joining(core, FAIL(ST_PROTOCOL, "rank %d (%s, pid %d) breaks the protocol",
                                early->rank, early->host, early->pid));
    } else if (kind == CONTROL_HELLO) {
        greet_rank(core, conn, bytes, size);
    } else {
        (void)FAIL(ST_PROTOCOL, "it did not say which rank it is");
        refuse_stranger(core, conn);
    }
    if (core->phase == LINK_FAILING)
        end_failing(core);
}

void join_lost(link_core *core, int conn, status code)
{
    const link_conn *const gone = &core->conn[conn];
    if (core->rank != 0) {
        fail_coming(core, code);
    } else if (gone->state == CONN_NEW) {
        refuse_stranger(core, conn);
    } else if (gone->state == CONN_PEER && core->phase == LINK_MEETING) {
        const link_peer *lost = &core->peer[gone->peer];
        code = FAIL(ST_UNAVAILABLE,
                    "rank %d (%s, pid %d) died before all ranks had come: its connection is closed",
                    lost->rank, lost->host, lost->pid);
        link_drop(core, conn);
        fail_joining(core, code);
    } else {
        link_drop(core, conn);
    }
    if (core->phase == LINK_FAILING)
        end_failing(core);
}

/* Rank 0's time is up. Once it gives those that have connected the time to say who they are, and
 * those at its port if it comes late to see them, because it was stopped. */
static bool gives_last_call(link_core *core)
{
    bool wanted = core->idle_ns > core->beat_ns + RETRY_NS;
    for (int i = 0; i < core->n_conns; i++)
        wanted |= core->conn[i].state == CONN_NEW;
    if (!wanted || core->last_call)
        return false;
    core->last_call = true;
    core->deadline_ns = core->now.ns + HELLO_NS;
    return true;
}

void join_time(link_core *core)
{
    end_late(core);
    if (core->phase == LINK_MEETING && core->now.ns >= core->retry_ns)
        try_again(core);
    else if (core->phase == LINK_MEETING && core->now.ns >= core->deadline_ns) {
        if (core->rank == 0 && !gives_last_call(core))
            fail_joining(core, ranks_missing(core));
        else if (core->rank != 0 && core->peer[0].conn >= 0)
            fail_coming(core, FAIL(ST_TIMEOUT, "the other end does not answer"));
    }
    if (core->phase == LINK_FAILING)
        end_failing(core);
}

int64_t join_due(const link_core *core)
{
    int64_t due = core->retry_ns;
    /* While rank 0 is being reached, the shell keeps to the deadline. */
    if (core->phase == LINK_MEETING && (core->rank == 0 || core->peer[0].conn >= 0))
        due = core->deadline_ns;
    /* Rank 0 looks so often that it knows when it was stopped. */
    if (core->phase == LINK_MEETING && core->rank == 0 && core->round_ns + core->beat_ns < due)
        due = core->round_ns + core->beat_ns;
    for (int i = 0; i < core->n_conns; i++)
        if (core->conn[i].state != CONN_NONE && core->conn[i].state != CONN_PEER &&
            core->conn[i].until_ns < due)
            due = core->conn[i].until_ns;
    return due;
}
