/* SPDX-License-Identifier: Apache-2.0 */
/* state_checks.c: what must hold of the dispatcher's state after every event. */

#include "tests/sim/prepd/blame.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/sim_twins.h"
#include "tests/sim/prepd/trespassers.h"
#include "tests/sim/prepd/wanted.h"

/* All leases of a daemon, wherever they are. */
enum { MOST_LEASES = 4096 };
typedef struct all_leases {
    const lease *of[MOST_LEASES];
    int count;
} all_leases;

static void find_leases(const dispatch *state, all_leases *out)
{
    out->count = 0;
    for (const lease *one = state->book.lost; one && out->count < MOST_LEASES; one = one->next)
        out->of[out->count++] = one;
    for (const worker_seat *seat = state->seats; seat && out->count < MOST_LEASES - 1;
         seat = seat->next) {
        if (seat->work)
            out->of[out->count++] = seat->work;
        if (seat->ahead)
            out->of[out->count++] = seat->ahead;
    }
}

static void check_apart(simulation *sim, const all_leases *leases)
{
    for (int i = 0; i < leases->count; i++)
        for (int k = 0; k < i; k++)
            if (leases->of[i]->number == leases->of[k]->number) {
                sim_break(sim, INV_LEASES, "lease %llu is in two places",
                          (unsigned long long)leases->of[i]->number);
                return;
            }
}

/* Every row that a consumer waits for is leased once, and its bytes are accounted for. */
static void check_consumer(simulation *sim, const consumer_seat *consumer, const all_leases *leases)
{
    int64_t reserved = 0, open = 0, leased = 0;
    for (int i = 0; i < consumer->n_slots; i++) {
        const slot *at = &consumer->slots[(consumer->first_slot + i) % SESSION_SLOTS];
        reserved += at->reserved;
        open += at->msg == NULL;
    }
    for (int i = 0; i < leases->count; i++)
        leased += leases->of[i]->owner == consumer;
    if (open != leased)
        sim_break(sim, INV_LEASES, "a consumer waits for %lld rows, and %lld are leased",
                  (long long)open, (long long)leased);
    if (reserved != consumer->reserved || consumer->unreturned < 0 ||
        consumer->credit + consumer->reserved + consumer->unreturned != sim->rules.credit)
        sim_break(sim, INV_CREDIT,
                  "a consumer's %lld bytes of credit do not add up: %lld free, %lld reserved, "
                  "%lld under way",
                  (long long)sim->rules.credit, (long long)consumer->credit,
                  (long long)consumer->reserved, (long long)consumer->unreturned);
}

/* job: whose list it is; NULL: the daemon's own. */
static void check_list(simulation *sim, const sim_data *data, const sim_stream_job *job,
                       const bad_samples *list)
{
    for (int64_t i = 0; i < list->n; i++)
        if (!sim_data_is_bad(data, list->id[i], sim->now_ns) &&
            !(job && job_made_up(job, list->id[i])))
            sim_break(sim, INV_HEALTHY, "the good sample %lld is quarantined: %s",
                      (long long)list->id[i], list->cause ? list->cause[i] : "a HELLO says so");
}

/* What the consumer knows has been named by its job. */
static void check_known(simulation *sim, const consumer_seat *consumer)
{
    const sim_link *link = link_of_peer(sim, &consumer->peer);
    if (!consumer->known)
        return;
    check_list(sim, &sim->data[consumer->src == &consumer->src->of->eval],
               link->kind == END_RANK ? &sim->job[sim->rank[link->who]->job] : NULL,
               &consumer->known->bad);
}

/* Every record that is to come is leased, or still to be leased. */
static void check_build(simulation *sim, const source *section, const all_leases *leases)
{
    const index_build *build = &section->build;
    if (!build->active)
        return;
    int64_t open = index_images(section->index) - build->next_image +
                   index_samples(section->index) - build->next_sample;
    for (int i = 0; i < leases->count; i++)
        if (leases->of[i]->owner == section)
            open += leases->of[i]->n_items;
    if (open != build->left)
        sim_break(sim, INV_LEASES,
                  "%lld records of the index of %s are to come, and %lld are leased or to be "
                  "leased",
                  (long long)build->left, section->name, (long long)open);
}

/* Whatever a worker says: it is local if the daemon has started it, and decides if it is, or if its
 * key is trusted. What only deciders may do, no other has in work. */
static void check_trust(simulation *sim, const sim_daemon *daemon, const worker_seat *seat)
{
    int number;
    const sim_worker *worker = worker_of_seat(sim, seat, &number);
    if (!worker)
        return;
    if (seat->local != (worker->local && worker->daemon == daemon->number))
        sim_break(sim, INV_ROLES, "worker %d counts as %s", number,
                  seat->local ? "local" : "one of another machine");
    if (seat->decider != worker_decides(sim, worker))
        sim_break(sim, INV_ROLES, "worker %d %s", number,
                  seat->decider ? "decides" : "may not decide");
    if (!seat->decider && ((seat->work && lease_needs_decider(seat->work)) || seat->ahead))
        sim_break(sim, INV_ROLES, "worker %d has in work what only deciders may do", number);
    if (trial_of(seat).lease && seat->leases_done > 0)
        sim_break(sim, INV_HEALTHY,
                  "worker %d tries an item alone, and may die of what it did before", number);
    if (!seat->decider && account_is_excluded(seat->of, daemon->state->now_ns))
        sim_break(sim, INV_DEVIANT, "worker %d has a seat, and its key is excluded", number);
}

static void check_seat(simulation *sim, const worker_seat *seat)
{
    int number;
    const sim_worker *worker = worker_of_seat(sim, seat, &number);
    if (!worker)
        return;
    const worker_bent bent = worker->bent;
    if (seat->proved && (bent == BENT_OTHER_BUILD || bent == BENT_OTHER_DECODER ||
                         bent == BENT_OTHER_TOKENIZER || bent == BENT_MUTE))
        sim_break(sim, INV_PROVED, "worker %d may work although it differs", number);
    const int64_t opened_ns = sim->link[seat->peer.connection - 1].opened_ns;
    if (sim->rules.weight[FAULT_JUMP] == 0 &&
        (seat->joined_ns < opened_ns || seat->heard_ns < opened_ns || seat->since_ns < opened_ns ||
         seat->told_ns < opened_ns))
        sim_break(sim, INV_MEMORY, "worker %d has a seat that is older than its connection",
                  number);
    if (!sim->link[seat->peer.connection - 1].known)
        sim_break(sim, INV_PROVED, "worker %d has joined, and its rows would be too long", number);
}

static const worker_seat *seat_of(const sim_daemon *daemon, const sim_link *link)
{
    const worker_seat *seat = daemon->state->seats;
    while (seat && seat->peer.connection != link->peer.connection)
        seat = seat->next;
    return seat;
}

bool check_is_at_work(const simulation *sim, const sim_daemon *daemon, const sim_link *link,
                      const wire_msg *message)
{
    const worker_seat *seat = seat_of(daemon, link);
    frame head;
    return seat && seat->work && !daemon->state->stopping &&
           frame_decode(wire_msg_part(message, 0), "core", &head) == ST_OK &&
           (seat->work->owner || head.kind != KIND_ON) &&
           seat->work->number == sim->worker[link->who]->job.number &&
           !peer_limits_ignores(&daemon->state->peer_limits, &link->peer);
}

void check_may_work(simulation *sim, const sim_daemon *daemon, const sim_link *link)
{
    const worker_seat *seat = seat_of(daemon, link);
    if (!seat || !seat->proved)
        sim_break(sim, INV_PROVED, "worker %d is given work and has not proved what it is",
                  link->who);
}

void check_has_gone(simulation *sim, const sim_daemon *daemon, const sim_link *link)
{
    if (daemon->state && !daemon->stopping && seat_of(daemon, link))
        sim_break(sim, INV_DEVIANT, "worker %d broke the protocol and is still there", link->who);
    if (daemon->state && !daemon->stopping && sim->worker[link->who]->local &&
        sim->worker[link->who]->state != WORKER_GONE)
        sim_break(sim, INV_PROCESSES, "the local worker %d broke the protocol and is not ended",
                  link->who);
}

/* Only pictures with a warning count as damaged. */
static void check_damaged(simulation *sim, const sim_data *data, const bad_samples *list)
{
    for (int64_t i = 0; i < list->n; i++)
        if (data->picture[list->id[i]].fate != PICTURE_FINE)
            sim_break(sim, INV_HEALTHY, "picture %lld counts as damaged, and nobody has said so",
                      (long long)list->id[i]);
}

void check_daemon(simulation *sim, sim_daemon *daemon)
{
    const dispatch *state = daemon->state;
    static all_leases leases;
    find_leases(state, &leases);
    check_apart(sim, &leases);
    for (const consumer_seat *consumer = state->consumer_seats; consumer;
         consumer = consumer->next) {
        check_consumer(sim, consumer, &leases);
        check_known(sim, consumer);
    }
    for (const worker_seat *seat = state->seats; seat; seat = seat->next) {
        check_seat(sim, seat);
        check_trust(sim, daemon, seat);
    }
    if (daemon->unstarted && state->local.unstarted_ns == 0)
        sim_break(sim, INV_GOES_ON, "daemon %d does not count that no worker could be started",
                  daemon->number);
    check_list(sim, &sim->data[0], NULL, &state->train.bad);
    check_list(sim, &sim->data[1], NULL, &state->eval.bad);
    check_damaged(sim, &sim->data[0], &state->train.damaged);
    check_damaged(sim, &sim->data[1], &state->eval.damaged);
    check_build(sim, &state->train, &leases);
    check_build(sim, &state->eval, &leases);
    check_roles(sim, state);
    check_twins(sim, state);
    check_leases(sim, state);
    check_accounts(sim, state);
    check_memory(sim, daemon);
    check_gone(sim, daemon);
    check_blame(sim, daemon);
    check_wanted(sim, daemon);
}
