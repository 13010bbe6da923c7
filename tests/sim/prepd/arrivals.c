/* SPDX-License-Identifier: Apache-2.0 */
/* arrivals.c: hands the core what a worker sends, and looks at what comes of it: a lease has one
 * answer, a late answer changes nothing, and who misses too many files is sent away. */
#include "tests/sim/prepd/arrivals.h"

#include "tests/sim/prepd/blame.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"

enum { MISSING_LIMIT = 3 }; /* as in worker_answers.c */

static const worker_seat *seat_on(const dispatch *state, const sim_link *link)
{
    const worker_seat *seat = state->seats;
    while (seat && seat->peer.connection != link->peer.connection)
        seat = seat->next;
    return seat;
}

static uint64_t mix(uint64_t hash, int64_t value)
{
    return sim_random_mix(hash ^ (uint64_t)value);
}

/* A hash of all that an answer could change. */
static uint64_t hash_work(const dispatch *state)
{
    uint64_t hash = 1;
    for (const lease *lost = state->book.lost; lost; lost = lost->next)
        hash = mix(mix(hash, (int64_t)lost->number), lost->n_items);
    for (const consumer_seat *consumer = state->consumer_seats; consumer;
         consumer = consumer->next) {
        hash = mix(mix(hash, consumer->n_slots), consumer->known ? consumer->known->bad.n : 0);
        for (int i = 0; i < consumer->n_slots; i++)
            hash =
                mix(hash, consumer->slots[(consumer->first_slot + i) % SESSION_SLOTS].msg != NULL);
    }
    for (int i = 0; i < 2; i++) {
        const source *section = i ? &state->eval : &state->train;
        hash = mix(mix(hash, section->build.left), section->bad.n);
    }
    return mix(mix(hash, state->n_seats), (int64_t)state->counts.rows);
}

/* Counts the files that the worker has missed and the daemon has, by what it answered now. */
static void check_misses(simulation *sim, sim_worker *worker, bool is_gone)
{
    if (sim->rules.weight[FAULT_NO_SIGHT] > 0)
        return; /* the daemon may not have seen them */
    worker->n_missed += worker->misses_told;
    worker->misses_told = 0;
    if (worker->n_missed >= MISSING_LIMIT && !is_gone)
        sim_break(sim, INV_DEVIANT, "pid %d has missed %d files, and is still there",
                  (int)worker->pid, worker->n_missed);
}

void worker_message_arrives(sim_daemon *to, const sim_link *link, wire_msg *message)
{
    simulation *sim = to->sim;
    frame head;
    const bool is_answer =
        frame_decode(wire_msg_part(message, 0), "worker", &head) == ST_OK &&
        (head.kind == KIND_ROW || head.kind == KIND_RECORDS || head.kind == KIND_FAILED);
    if (!is_answer || to->stopping || peer_limits_ignores(&to->state->peer_limits, &link->peer)) {
        daemon_message(to, link, message);
        return;
    }
    const worker_seat *seat = seat_on(to->state, link);
    const uint64_t number = seat && seat->work ? seat->work->number : 0;
    const bool is_wanted = number && seat->work->owner; /* its consumer is still there */
    const bool late = !number || (head.kind != KIND_ROW && head.row != number);
    const uint64_t before = late ? hash_work(to->state) : 0;
    const trial alone = late ? (trial){0} : trial_of(seat);
    to->saw_trouble = to->knew_no_size = false;
    daemon_message(to, link, message);
    check_trial(sim, to, &alone);
    seat = seat_on(to->state, link);
    if (late && hash_work(to->state) != before)
        sim_break(sim, INV_ANSWERS, "worker %d has no such lease, and its answer counts",
                  link->who);
    if (!late && seat && seat->work && seat->work->number == number && !to->state->stopping)
        sim_break(sim, INV_ANSWERS, "worker %d has answered lease %llu, and still has it",
                  link->who, (unsigned long long)number);
    if (!is_wanted || to->knew_no_size) /* then it cannot tell that the worker misses a file */
        sim->worker[link->who]->misses_told = 0;
    if (!late && sim->worker[link->who]->misses_told > 0)
        check_misses(sim, sim->worker[link->who], !seat);
}
