/* SPDX-License-Identifier: Apache-2.0 */
/* link_core.c: see link_core.h: beats and leaving, and which of the parts an event is for.
 *
 * Beats are sent at regular intervals, and ranks that have been silent for too long are looked for
 * as often (link_loss.c). Ranks other than 0 are connected to rank 0 alone, so rank 0 passes on
 * what it hears of a lost rank. The first cause that a rank hears of is the one it keeps (`lost`);
 * whatever fails afterwards is a consequence. A rank that ends says its last word, BYE or LOST, and
 * the other end hangs up to show that it was received. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/parallel/core/link_state.h"

static const int64_t GRACE_NS = INT64_C(1000000000) * LINK_GRACE_S;
/* There are BEATS beats within the silence that counts as a loss, but they are at most BEAT_MOST_NS
 * apart. */
enum { BEATS = 5 };
static const int64_t BEAT_MOST_NS = INT64_C(1000) * 1000 * 1000;

/* ---- beats ---- */

bool link_core_others_wait(const link_core *core)
{
    return link_peers_wait(core, NULL);
}

static void send_beats(link_core *core)
{
    core->next_beat_ns = core->now.ns + core->beat_ns;
    if (core->leaving && (core->rank != 0 || core->failed[0])) /* the last word was sent */
        return;
    for (int i = 0; i < core->n_peers; i++) {
        const link_peer *peer = &core->peer[i];
        const bool waits = core->now.waits || link_peers_wait(core, peer);
        const rank_link_kind kind = waits            ? CONTROL_WAITS
                                    : core->now.held ? CONTROL_HELD
                                                     : CONTROL_BEAT;
        if (peer->conn >= 0)
            link_answer(core,
                        (link_action){.kind = LINK_SEND_AT, .conn = peer->conn, .message = kind});
    }
}

/* False: it breaks the protocol, also by more notes at a time than any rank has to say. */
static bool take_note(link_core *core, const link_peer *peer, const char *text)
{
    if (core->rank != 0 || core->n_kept >= LINK_STRANGERS)
        return false;
    link_answer(
        core, (link_action){.kind = LINK_NOTE, .rank = peer->rank, .text = link_keep(core, text)});
    return true;
}

/* A message from another rank of the running job. */
static void take_message(link_core *core, int conn, rank_link_kind kind, const char *bytes,
                         size_t size)
{
    char text[CONTROL_TEXT_MAX + 1];
    link_peer *const peer = &core->peer[core->conn[conn].peer];
    loss_hear(core, peer);
    snprintf(text, sizeof text, "%.*s", (int)size, bytes);
    if (kind == CONTROL_BEAT || kind == CONTROL_WAITS || kind == CONTROL_HELD) {
        snprintf(peer->place, sizeof peer->place, "%s", text);
        peer->waits = kind == CONTROL_WAITS;
        peer->held = kind == CONTROL_HELD;
        return;
    }
    if (kind == CONTROL_NOTE && take_note(core, peer, text))
        return;
    if (kind == CONTROL_SHAPE && shape_message(core, peer, (const uint8_t *)bytes, size))
        return;
    if (kind == CONTROL_LATE && core->rank == 0) {
        loss_by_delay(core, peer, text);
        return;
    }
    if (kind == CONTROL_LOST || kind == CONTROL_SILENT)
        loss_told(core, peer, text, kind == CONTROL_SILENT);
    else if (kind != CONTROL_BYE)
        loss_of_peer(core, peer, "breaks the protocol");
    /* Hanging up tells the other end that its last word was received. */
    if (peer->conn >= 0)
        link_drop(core, peer->conn);
}

/* ---- what comes ---- */

/* This process was itself stopped and so could not hear the others; they do not count as silent,
 * and the time in which they must say what they need starts again. */
static void note_still(link_core *core, int64_t still_ns)
{
    core->still_ns = still_ns;
    core->still_met = core->phase != LINK_RUNNING;
    core->still_until_ns = core->now.ns;
    core->need_until_ns = core->now.ns + core->now.call_ns;
    for (int i = 0; i < core->n_peers && core->phase == LINK_RUNNING; i++)
        loss_hear(core, &core->peer[i]);
}

/* A rank that reaches for rank 0 is not asked meanwhile, so while ranks meet rank 0 alone can tell
 * whether it was stopped; then it counts if others give up meanwhile. */
static void begin_event(link_core *core, link_now now)
{
    const bool runs = core->phase == LINK_RUNNING;
    link_begin(core, now);
    core->idle_ns = now.ns - core->round_ns;
    if ((runs && core->idle_ns > core->silence_ns / 2) ||
        (!runs && core->rank == 0 && core->idle_ns >= core->timeout_ns))
        note_still(core, core->idle_ns);
    core->round_ns = now.ns;
}

/* This rank has left once it is leaving and there is no other to wait for. */
static void end_event(link_core *core)
{
    const bool ends_badly = core->failed[0] || core->over;
    bool connected = false;
    if (core->phase != LINK_RUNNING || !core->leaving)
        return;
    for (int i = 0; i < core->n_peers; i++)
        connected |= core->peer[i].conn >= 0;
    if (connected && !(ends_badly && core->now.ns > core->leave_by_ns))
        return;
    core->phase = LINK_OUT;
    link_answer(core, (link_action){.kind = LINK_LEFT});
}

static status grow_in(link_conn *from, size_t size)
{
    if (from->n_in + size <= from->capacity)
        return ST_OK;
    uint8_t *more = realloc(from->in, from->n_in + size);
    if (!more)
        return FAIL(ST_NO_MEMORY, "no memory for a message of %zu bytes", from->n_in + size);
    from->in = more;
    from->capacity = from->n_in + size;
    return ST_OK;
}

/* Reads the header at the beginning of the bytes. *out_size: 0 if the message is not whole yet,
 * otherwise that of header and payload. */
static status next_message(const link_core *core, const link_conn *from, size_t at,
                           rank_link_kind *out_kind, size_t *out_size)
{
    size_t size;
    *out_size = 0;
    if (from->n_in - at < CONTROL_HEADER)
        return ST_OK;
    TRY(rank_link_header_get(from->in + at, out_kind, &size));
    if (size > CONTROL_TEXT_MAX && core->phase == LINK_RUNNING)
        return FAIL(ST_PROTOCOL, "it sent a message of kind %d with %zu bytes", (int)*out_kind,
                    size);
    if (from->n_in - at >= CONTROL_HEADER + size)
        *out_size = CONTROL_HEADER + size;
    return ST_OK;
}

/* Acts on the complete messages that were received and keeps the rest. An error: the bytes are no
 * message. */
static status take_messages(link_core *core, int conn)
{
    link_conn *const from = &core->conn[conn];
    rank_link_kind kind;
    size_t at = 0, size;
    for (;;) {
        if (from->state != CONN_NEW && from->state != CONN_PEER)
            return ST_OK;
        TRY(next_message(core, from, at, &kind, &size));
        if (size == 0)
            break;
        const uint8_t *payload = from->in + at + CONTROL_HEADER;
        if (core->phase == LINK_RUNNING)
            take_message(core, conn, kind, (const char *)payload, size - CONTROL_HEADER);
        else
            join_message(core, conn, kind, payload, size - CONTROL_HEADER);
        at += size;
    }
    from->n_in -= at;
    if (from->n_in > 0) {
        memmove(from->in, from->in + at, from->n_in);
    } else { /* greetings are long, and come once */
        free(from->in);
        from->in = NULL;
        from->capacity = 0;
    }
    return ST_OK;
}

/* A connection that is no longer usable, or whose bytes are no message: code and the last note. */
static void lose_conn(link_core *core, int conn, status code, const char *how)
{
    if (core->conn[conn].state == CONN_PEER && core->phase == LINK_RUNNING)
        loss_of_peer(core, &core->peer[core->conn[conn].peer], how);
    else if (core->conn[conn].state == CONN_REFUSED && core->phase == LINK_RUNNING)
        link_drop(core, conn);
    else if (core->conn[conn].state != CONN_NONE)
        join_lost(core, conn, code);
}

/* ---- events ---- */

void link_core_time(link_core *core, link_now now)
{
    begin_event(core, now);
    join_time(core);
    if (core->phase == LINK_RUNNING) {
        if (now.ns >= core->next_beat_ns)
            send_beats(core);
        if (!core->over)
            loss_by_silence(core);
        else if (now.ns - core->over_ns > GRACE_NS && !core->leaving && !core->exited) {
            core->exited = true;
            link_answer(core,
                        (link_action){.kind = LINK_EXIT, .say = core->refused, .text = core->lost});
        }
        shape_time(core);
    }
    end_event(core);
}

void link_core_connected(link_core *core, link_now now, int conn)
{
    char why[128];
    begin_event(core, now);
    core->conn[conn] = (link_conn){.state = CONN_NEW};
    if (core->phase != LINK_RUNNING) {
        join_connected(core, conn);
        return;
    }
    snprintf(why, sizeof why,
             "a job of %d ranks is complete and running here; is this another one?", core->size);
    link_refuse(core, conn, link_keep(core, why));
}

void link_core_bytes(link_core *core, link_now now, int conn, const void *bytes, size_t size)
{
    link_conn *const from = &core->conn[conn];
    begin_event(core, now);
    if (from->state != CONN_NEW && from->state != CONN_PEER)
        return;
    status st = grow_in(from, size);
    if (st == ST_OK) {
        memcpy(from->in + from->n_in, bytes, size);
        from->n_in += size;
        st = take_messages(core, conn);
    }
    if (st != ST_OK)
        lose_conn(core, conn, st, "breaks the protocol");
    end_event(core);
}

void link_core_gone(link_core *core, link_now now, int conn, const char *why)
{
    char how[512] = "died: its connection is closed";
    begin_event(core, now);
    if (why)
        snprintf(how, sizeof how, "died, or its connection to rank %d (%s, pid %u) broke: %.200s",
                 core->rank, core->me.host, core->me.pid, why);
    const status code = why ? FAIL(ST_UNAVAILABLE, "the connection is lost: %s", why)
                            : FAIL(ST_UNAVAILABLE, "the other end has closed the connection");
    lose_conn(core, conn, code, how);
    if (core->conn[conn].state != CONN_NONE) /* it was told why, which nobody can read */
        link_drop(core, conn);
    end_event(core);
}

void link_core_need(link_core *core, link_now now, const uint8_t need[LINK_NEEDS])
{
    begin_event(core, now);
    shape_ask(core, need);
    end_event(core);
}

void link_core_tell(link_core *core, link_now now, const char *text)
{
    begin_event(core, now);
    if (core->rank != 0 && core->phase == LINK_RUNNING && core->peer[0].conn >= 0) {
        const char *kept = link_keep(core, text);
        const size_t size = strlen(kept);
        link_send(core, core->peer[0].conn, CONTROL_NOTE, kept,
                  size < CONTROL_TEXT_MAX ? size : CONTROL_TEXT_MAX);
    }
    end_event(core);
}

void link_core_late(link_core *core, link_now now, const char *why)
{
    char failed[CONTROL_TEXT_MAX];
    begin_event(core, now);
    snprintf(failed, sizeof failed, "rank %d failed: %.3000s", core->rank, why);
    if (core->rank == 0)
        loss_by_delay(core, NULL, failed);
    else if (core->phase == LINK_RUNNING && !core->over && core->peer[0].conn >= 0)
        link_send(core, core->peer[0].conn, CONTROL_LATE, link_keep(core, failed), strlen(failed));
    end_event(core);
}

void link_core_leave(link_core *core, link_now now, const char *failed)
{
    begin_event(core, now);
    if (failed && !core->over)
        snprintf(core->failed, sizeof core->failed, "rank %d failed: %.3000s", core->rank, failed);
    core->leaving = true;
    core->leave_by_ns = now.ns + LAST_WORD_NS;
    const rank_link_kind word = core->failed[0] ? CONTROL_LOST : CONTROL_BYE;
    for (int i = 0; !core->over && i < core->n_peers; i++)
        if (core->peer[i].conn >= 0 && (core->rank != 0 || core->failed[0]))
            link_send(core, core->peer[i].conn, word, core->failed, strlen(core->failed));
    end_event(core);
}

/* ---- answers ---- */

int64_t link_core_due(const link_core *core)
{
    int64_t due = join_due(core);
    if (core->phase != LINK_RUNNING)
        return due;
    if (core->next_beat_ns < due)
        due = core->next_beat_ns;
    if (shape_due(core) < due)
        due = shape_due(core);
    if (core->leaving && core->leave_by_ns > core->now.ns && core->leave_by_ns + 1 < due)
        due = core->leave_by_ns + 1;
    return due;
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

link_last_line link_core_last_line(const link_core *core, bool began, const char *failed)
{
    const bool said = core->over && is_same(failed, core->lost);
    const bool heard = core->one_machine && !core->over && !began && core->peer[0].conn < 0;
    if (core->rank != 0)
        return (link_last_line){.hush = (core->refused && said) || heard};
    return (link_last_line){.say = core->refused && !said ? core->lost : NULL};
}

/* ---- its life ---- */

static status make_room(link_core *core)
{
    const int n_peers = core->rank == 0 ? core->size - 1 : 1;
    core->n_peers = n_peers;
    core->n_conns = n_peers + LINK_STRANGERS;
    core->action_room = 4 * core->n_conns + 16;
    core->peer = calloc((size_t)n_peers, sizeof *core->peer);
    core->conn = calloc((size_t)core->n_conns, sizeof *core->conn);
    core->action = calloc((size_t)core->action_room, sizeof *core->action);
    core->kept = calloc((size_t)core->action_room, sizeof *core->kept);
    if (!core->peer || !core->conn || !core->action || !core->kept)
        return FAIL(ST_NO_MEMORY, "no memory for the rank link");
    for (int i = 0; i < n_peers; i++)
        core->peer[i] = (link_peer){.conn = -1, .rank = core->rank == 0 ? i + 1 : 0};
    return ST_OK;
}

/* The texts of `me` are those of the greeting as bytes, which the core keeps. */
static status copy_hello(link_core *core, const link_terms *terms)
{
    TRY(rank_link_hello_put(&terms->me, &core->hello, &core->hello_size));
    return rank_link_hello_get(span_of(core->hello, core->hello_size), &core->me);
}

status link_core_new(const link_terms *terms, link_now now, link_core **out)
{
    link_core *core = calloc(1, sizeof *core);
    if (!core)
        return FAIL(ST_NO_MEMORY, "no memory for the rank link");
    core->rank = (int)terms->me.rank;
    core->size = (int)terms->me.size;
    snprintf(core->at_host, sizeof core->at_host, "%s", terms->at_host);
    core->at_port = terms->at_port;
    core->one_machine = terms->one_machine;
    core->timeout_ns = (int64_t)(terms->timeout_s * 1e9);
    core->silence_ns = (int64_t)(terms->silence_s * 1e9);
    core->beat_ns =
        core->silence_ns / BEATS < BEAT_MOST_NS ? core->silence_ns / BEATS : BEAT_MOST_NS;
    memcpy(core->id, terms->id, sizeof core->id);
    core->now = now;
    core->round_ns = now.ns;
    core->deadline_ns = now.ns + core->timeout_ns;
    core->retry_ns = core->rank == 0 ? INT64_MAX : now.ns;
    status st = make_room(core);
    if (st == ST_OK)
        st = copy_hello(core, terms);
    if (st != ST_OK)
        link_core_free(&core);
    else
        *out = core;
    return st;
}

int link_core_connections(const link_core *core)
{
    return core->n_conns;
}

void link_core_free(link_core **held)
{
    link_core *core = *held;
    if (!core)
        return;
    for (int i = 0; i < core->n_conns && core->conn; i++)
        free(core->conn[i].in);
    for (int i = 0; i < core->n_kept; i++)
        free(core->kept[i]);
    free(core->kept);
    free(core->action);
    free(core->conn);
    free(core->peer);
    free(core->hello);
    free(core);
    *held = NULL;
}
