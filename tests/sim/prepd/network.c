/* SPDX-License-Identifier: Apache-2.0 */
/* network.c: links, and what is sent over them. How they end is in network_ends.c. */
#include "tests/sim/prepd/network.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/arrivals.h"
#include "tests/sim/prepd/blame.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/sim_faults.h"
#include "tests/sim/prepd/sim_twins.h"
#include "tests/sim/prepd/trespassers.h"
#include "tests/sim/prepd/wanted.h"

enum {
    PEER_BYTES = 5,  /* of a routing id: a zero and a number */
    BREACH = -1,     /* the word of a message that breaks the protocol */
    MOST_UNREAD = 2, /* rows that a clogged link still takes */
};

/* What everyone may ask for. A stranger may nothing. */
static const unsigned roles_of[] = {[END_WORKER] = WIRE_WORK,
                                    [END_SUPERVISOR] = WIRE_WORK,
                                    [END_RANK] = WIRE_ROWS,
                                    [END_OPERATOR] = WIRE_CONTROL | WIRE_STATUS,
                                    [END_STRANGER] = 0};

/* What the daemon's list of keys says of a peer. Local workers come over ipc, without a key. */
static void give_key(const simulation *sim, end_kind kind, int who, wire_peer *out)
{
    const bool crew = kind == END_SUPERVISOR || (kind == END_WORKER && !sim->worker[who]->local);
    const int number = kind == END_WORKER ? sim->worker[who]->supervisor : who;
    if (crew && sim->rules.trusted[number] && kind == END_WORKER)
        out->roles |= WIRE_TRUSTED;
    if (!sim->rules.keyed || (!crew && kind != END_RANK))
        return;
    snprintf(out->key_name, sizeof out->key_name, crew ? "crew%d" : "job%d",
             crew ? sim->rules.key[number] : sim->rank[who]->job);
    snprintf(out->key, sizeof out->key, "key of %s", out->key_name);
}

static void name_peer(const simulation *sim, int number, end_kind kind, int who, wire_peer *out)
{
    out->roles = roles_of[kind];
    out->size = PEER_BYTES;
    out->connection = number + 1;
    out->id[0] = 0;
    for (int i = 1; i < PEER_BYTES; i++)
        out->id[i] = (uint8_t)((unsigned)number >> (8 * (PEER_BYTES - 1 - i)));
    give_key(sim, kind, who, out);
}

sim_link *link_of_peer(simulation *sim, const wire_peer *peer)
{
    return peer->connection > 0 && peer->connection <= sim->n_links
               ? &sim->link[peer->connection - 1]
               : NULL;
}

int link_open(simulation *sim, end_kind kind, int who, int daemon, door at, int64_t latency_ns)
{
    const sim_daemon *to = &sim->daemon[daemon];
    if (!to->listens)
        return -1;
    if (sim->n_links == sim->links_room) {
        sim->links_room = 2 * sim->links_room + 32;
        sim->link = realloc(sim->link, (size_t)sim->links_room * sizeof *sim->link);
        if (!sim->link)
            abort();
    }
    sim_link *made = &sim->link[sim->n_links];
    *made = (sim_link){.kind = kind,
                       .who = who,
                       .daemon = daemon,
                       .incarnation = to->incarnation,
                       .at = at,
                       .served = true,
                       .gone_ns = INT64_MAX,
                       .latency_ns = latency_ns,
                       .opened_ns = sim->now_ns + to->skew_ns};
    name_peer(sim, sim->n_links, kind, who, &made->peer);
    return sim->n_links++;
}

static void send_up(simulation *sim, int number, wire_msg *message, int64_t word)
{
    sim_link *link = &sim->link[number];
    const int64_t at_ns = sim->now_ns + link_delay(sim, link);
    if (link->cut || link->closed) {
        wire_msg_free(&message);
        return;
    }
    link->up_ns = at_ns > link->up_ns ? at_ns : link->up_ns;
    sim_queue_put(
        &sim->queue,
        (sim_event){
            .at_ns = link->up_ns, .kind = EVENT_UP, .who = number, .word = word, .data = message});
}

void link_send_up(simulation *sim, int number, wire_msg *message)
{
    send_up(sim, number, message, 0);
}

static wire_msg *make_json(int kind, uint64_t row, const char *json)
{
    wire_msg *message;
    if (wire_json_message(kind, row, json, strlen(json), NULL, &message) != ST_OK)
        abort();
    return message;
}

void link_say(simulation *sim, int number, int kind, uint64_t row, const char *json)
{
    send_up(sim, number, make_json(kind, row, json), 0);
}

void link_breach(simulation *sim, int number, int kind, uint64_t row, const char *json)
{
    send_up(sim, number, make_json(kind, row, json), BREACH);
}

void link_give_back(simulation *sim, int number, int64_t bytes)
{
    char json[48];
    snprintf(json, sizeof json, "{\"bytes\":%lld}", (long long)bytes);
    send_up(sim, number, make_json(KIND_CREDIT, 0, json), bytes);
}

status link_send_down(simulation *sim, const sim_daemon *from, const wire_peer *to, frame_kind kind,
                      wire_msg *message)
{
    sim_link *link = link_of_peer(sim, to);
    wire_msg *sent = NULL;
    if (!link || link->daemon != from->number || link->incarnation != from->incarnation ||
        sim->now_ns >= link->gone_ns)
        return FAIL(ST_UNAVAILABLE, "the peer has gone");
    link->n_errors += kind == KIND_ERROR;
    check_is_meant_for(sim, link, kind);
    if (kind == KIND_END && fault_comes_before_end(sim, link))
        link->unread = MOST_UNREAD;
    if (sim->now_ns >= link->clogged_ns)
        link->unread = 0;
    else if ((kind == KIND_ROW || kind == KIND_END) && ++link->unread > MOST_UNREAD)
        return FAIL(ST_TIMEOUT, "the peer takes nothing");
    TRY(wire_msg_new(&sent));
    TRY(wire_msg_move(sent, message));
    if (link->cut) { /* sent into the void */
        wire_msg_free(&sent);
        return ST_OK;
    }
    const int64_t free_ns = link->clogged_ns > sim->now_ns ? link->clogged_ns : sim->now_ns,
                  at_ns = free_ns + link_delay(sim, link);
    link->down_ns = at_ns > link->down_ns ? at_ns : link->down_ns;
    sim_queue_put(&sim->queue, (sim_event){.at_ns = link->down_ns,
                                           .kind = EVENT_DOWN,
                                           .who = (int)(link - sim->link),
                                           .data = sent});
    return ST_OK;
}

/* Hands the core a message of a peer that has no role for what it asks. */
static void arrive_unasked(simulation *sim, sim_daemon *to, int number, wire_msg *message)
{
    const obedience before = obedience_of(to);
    const int errors = sim->link[number].n_errors;
    const bool listened = !to->stopping;
    daemon_message(to, &sim->link[number], message);
    if (listened)
        check_is_turned_away(sim, to, &sim->link[number], &before, errors);
}

/* Hands a message to the core, unless it was lost. */
static void arrive(simulation *sim, const sim_event *event, const sim_link *link)
{
    sim_daemon *to = &sim->daemon[link->daemon];
    if (link->cut || !link->served || !to->listens)
        return;
    if (event->word > 0 && sim->rank[link->who]->link == event->who)
        sim->rank[link->who]->under_way -= event->word;
    if (link->twin_of) {
        twin_arrives(sim, event->who, event->data);
        return;
    }
    if (link->trespasses) {
        arrive_unasked(sim, to, event->who, event->data);
        return;
    }
    const bool must_go = event->word == BREACH && check_is_at_work(sim, to, link, event->data);
    if (link->kind == END_WORKER)
        worker_message_arrives(to, link, event->data);
    else if (link->kind == END_OPERATOR)
        operator_message_arrives(to, link, event->data);
    else
        daemon_message(to, link, event->data);
    if (must_go)
        check_has_gone(sim, to, link);
}

void link_event(simulation *sim, const sim_event *event)
{
    const sim_link link = sim->link[event->who]; /* a copy: links may move while others connect */
    wire_msg *message = event->data;
    if (event->kind == EVENT_UP)
        arrive(sim, event, &link);
    else if (event->kind == EVENT_DOWN && !link.cut && !link.closed)
        people_message(sim, event->who, message);
    else if (event->kind == EVENT_ENDED && !link.closed)
        people_ended(sim, event->who);
    wire_msg_free(&message);
}
