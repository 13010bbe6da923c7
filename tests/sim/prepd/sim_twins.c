/* SPDX-License-Identifier: Apache-2.0 */
/* sim_twins.c: see sim_twins.h. The ranks of most jobs name their run and themselves in HELLO. Now
 * and then someone else comes who says that it is one of them. */
#include "tests/sim/prepd/sim_twins.h"

#include <stdio.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"

enum { NAME_BYTES = 32 };

static bool is_named(const simulation *sim, const sim_rank *rank)
{
    return sim->rules.named[rank->job];
}

/* Of all jobs of a schedule, as one training reads held-out data beside the other. */
static const char run_name[] = "run-1";

/* Each process of a job has its own name, which it keeps when its connection ends. */
static void name_rank(const simulation *sim, const sim_rank *rank, char out[NAME_BYTES])
{
    int number = 0;
    while (sim->rank[number] != rank)
        number++;
    snprintf(out, NAME_BYTES, "rank-%d", number);
}

void twin_put_names(const simulation *sim, const sim_rank *rank, json_writer *writer)
{
    char self[NAME_BYTES];
    if (!is_named(sim, rank))
        return;
    name_rank(sim, rank, self);
    json_put_key_cstr(writer, "run", run_name);
    json_put_key_cstr(writer, "consumer", self);
}

int twin_pick(simulation *sim)
{
    int found = -1, count = 0;
    for (int i = 0; i < sim->n_ranks; i++)
        if (sim->rank[i]->link >= 0 && is_named(sim, sim->rank[i]) &&
            sim_random_below(&sim->faults, (uint64_t)++count) == 0)
            found = i;
    return found;
}

void twin_come(simulation *sim, int number)
{
    const sim_rank *rank = sim->rank[number];
    const sim_stream_job *job = &sim->job[rank->job];
    const int daemon = sim->link[rank->link].daemon,
              link = link_open(sim, END_STRANGER, 0, daemon, DOOR_CONSUMERS, MS);
    const bool has_name = sim_random_chance(&sim->faults, 1, 2);
    char json[300];
    if (link < 0)
        return;
    sim->link[link].twin_of = number + 1;
    sim->link[link].peer.roles = WIRE_ROWS;
    snprintf(json, sizeof json,
             "{\"version\":%d,\"stream\":\"%s\",\"rank\":%d,\"ranks\":%d,\"credit_bytes\":%lld,"
             "\"prefixes\":true,\"rows_later\":true,\"run\":\"%s\"%s}",
             SESSION_VERSION, job->stream, rank->rank, job->ranks, (long long)sim->rules.credit,
             run_name, has_name ? ",\"consumer\":\"twin\"" : "");
    link_say(sim, link, KIND_HELLO, 0, json);
}

static const consumer_seat *seat_of(const dispatch *state, const wire_peer *peer)
{
    const consumer_seat *seat = state->consumer_seats;
    while (seat && seat->peer.connection != peer->connection)
        seat = seat->next;
    return seat;
}

static bool is_connected(simulation *sim, const consumer_seat *seat)
{
    return sim->now_ns < link_of_peer(sim, &seat->peer)->gone_ns;
}

void twin_arrives(simulation *sim, int number, wire_msg *message)
{
    const sim_link twin = sim->link[number];
    const sim_rank *rank = sim->rank[twin.twin_of - 1];
    sim_daemon *daemon = &sim->daemon[twin.daemon];
    const bool listened = !daemon->stopping && !twin.closed;
    const consumer_seat *first =
        listened && rank->link >= 0 ? seat_of(daemon->state, &sim->link[rank->link].peer) : NULL;
    const wire_peer peer = first ? first->peer : (wire_peer){0};
    const bool is_there = first && is_connected(sim, first);
    daemon_message(daemon, &twin, message);
    if (is_there && !seat_of(daemon->state, &peer))
        sim_break(sim, INV_TWINS, "rank %d loses its place to another", rank->rank);
    if (is_there && sim->link[number].n_errors == 0)
        sim_break(sim, INV_TWINS, "a second rank %d of a run is not refused", rank->rank);
    if (listened) { /* it leaves, whether it was let in or not */
        link_say(sim, number, KIND_BYE, 0, "{}");
        link_close(sim, number);
    }
}

bool twin_is_told(const char *words)
{
    return strstr(words, "another consumer reads stream ") != NULL;
}

void check_twin_refusal(simulation *sim, const dispatch *state, const sim_link *refused)
{
    char self[NAME_BYTES] = "";
    if (refused->kind != END_RANK && !refused->twin_of)
        return;
    const sim_rank *rank =
        sim->rank[refused->kind == END_RANK ? refused->who : refused->twin_of - 1];
    if (refused->kind == END_RANK)
        name_rank(sim, rank, self);
    const consumer_seat *seat = state->consumer_seats;
    while (seat && (seat->rank != rank->rank || strcmp(seat->run, run_name) != 0 ||
                    strcmp(seat->stream, sim->job[rank->job].stream) != 0))
        seat = seat->next;
    if (!is_named(sim, rank) || !seat || !is_connected(sim, seat) ||
        (self[0] && strcmp(seat->self, self) == 0))
        sim_break(sim, INV_TWINS, "rank %d is refused for another that is not there", rank->rank);
}

/* Whoever comes is put before the others. */
void check_twins(simulation *sim, const dispatch *state)
{
    const consumer_seat *newest = state->consumer_seats;
    for (const consumer_seat *seat = newest ? newest->next : NULL; seat; seat = seat->next)
        if (seat->rank == newest->rank && seat->run[0] && strcmp(seat->run, newest->run) == 0 &&
            strcmp(seat->stream, newest->stream) == 0)
            sim_break(sim, INV_TWINS, "two consumers are rank %d of stream %s of run %s",
                      seat->rank, seat->stream, seat->run);
}
