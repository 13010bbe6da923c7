/* SPDX-License-Identifier: Apache-2.0 */
/* trust_checks.c: whom the core believes, and whom it sends away: only a liar's key is
 * contradicted, and only the key of a worker that wastes its time has to wait. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"

/* Whether workers of this supervisor come under this account. */
static bool is_behind(const simulation *sim, int supervisor, const account *of)
{
    char id[ACCOUNT_ID];
    if (sim->rules.keyed)
        snprintf(id, sizeof id, "key of crew%d", sim->rules.key[supervisor]);
    else
        snprintf(id, sizeof id, "10.0.0.%d", sim->supervisor[supervisor].host);
    return strcmp(id, of->id) == 0;
}

static bool any_behind(const simulation *sim, const account *of, bool (*is_so)(worker_bent))
{
    for (int i = 0; i < sim->rules.n_supervisors; i++)
        if (is_behind(sim, i, of) && is_so(sim->rules.bent[i]))
            return true;
    return false;
}

/* One with a poor copy misses files that the daemon may not be able to look at just then. */
static bool is_liar(worker_bent bent)
{
    return bent == BENT_LIES_ROWS || bent == BENT_LIES_DIGEST || bent == BENT_LIES_IDS ||
           bent == BENT_LIES_FAILED || bent == BENT_LIES_KILLS || bent == BENT_POOR_COPY;
}

static bool is_odd(worker_bent bent)
{
    return bent != BENT_HONEST && bent != BENT_SLOW;
}

/* Whose word was just found to be false is excluded for it. */
static void check_length(simulation *sim, const dispatch *state, const account *of)
{
    const int64_t now_ns = state->now_ns;
    if (of->contradicted_ns == now_ns && now_ns > 0 &&
        (of->word_until_ns <= now_ns || of->excluded.until_ns < of->word_until_ns))
        sim_break(sim, INV_DEVIANT, "the key %s is contradicted, and not excluded for it",
                  of->name);
}

static bool begins_with(const char *text, const char *how)
{
    return strncmp(text, how, strlen(how)) == 0;
}

/* It says that two of this machine's workers differ only where a memory is bad, and that the
 * machine may be wrong only after three keys were contradicted in an hour. */
static void check_alarm(simulation *sim, const dispatch *state)
{
    static const int64_t HOUR_NS = INT64_C(3600000000000);
    int count = 0;
    if (state->alarm.at_ns != state->now_ns)
        return;
    if (!begins_with(state->alarm.why, "either this machine")) {
        if (!sim->rules.flips)
            sim_break(sim, INV_HONEST, "an alarm without a bad memory: %s", state->alarm.why);
        return;
    }
    for (int i = 0; i < state->accounts.used; i++)
        count += state->accounts.of[i]->contradicted_ns != 0 &&
                 state->now_ns - state->accounts.of[i]->contradicted_ns <= HOUR_NS;
    if (count <
        (sim->rules.weight[FAULT_STATUS] > 0 ? 2 : 3)) /* an operator may have admitted one */
        sim_break(sim, INV_HONEST, "an alarm, and %d keys were contradicted", count);
}

/* The leases of its workers are counted, by which it gets no more than it has earned. */
static void check_counted(simulation *sim, const dispatch *state, const account *of)
{
    int64_t count = 0;
    for (const worker_seat *seat = state->seats; seat; seat = seat->next)
        count += seat->of == of && (seat->work || seat->owes);
    if (count > of->leases)
        sim_break(sim, INV_LEASES, "the key %s has %lld leases, and %lld are counted", of->name,
                  (long long)count, (long long)of->leases);
}

void check_accounts(simulation *sim, const dispatch *state)
{
    int uses = 0, seats = 0;
    check_alarm(sim, state);
    for (int i = 0; i < state->accounts.used; i++) {
        const account *of = state->accounts.of[i];
        uses += of->uses;
        seats += of->seats;
        check_length(sim, state, of);
        check_counted(sim, state, of);
        if (of->contradicted_ns != 0 && !any_behind(sim, of, is_liar))
            sim_break(sim, INV_HONEST, "the key %s, whose workers do not lie, is contradicted: %s",
                      of->name, of->why);
    }
    for (const worker_seat *seat = state->seats; seat; seat = seat->next) {
        uses -= !seat->local;
        seats -= !seat->local;
    }
    if (uses != state->n_consumers || seats != 0)
        sim_break(sim, INV_MEMORY, "%d consumers and all seats use %d accounts, of %d seats more",
                  state->n_consumers, uses, seats);
}

/* Things that happen to an honest worker,
 * for which nobody can tell it from one that wastes time. */
static bool may_look_odd(const simulation *sim)
{
    static const sim_fault faults[] = {FAULT_KILL_WORKER, FAULT_STOP_WORKER, FAULT_FREEZE_WORKER,
                                       FAULT_BREACH,      FAULT_CUT_WORKER,  FAULT_HALF_OPEN,
                                       FAULT_STALL,       FAULT_JUMP};
    /* A picture that hangs ends a worker about when its daemon loses patience. */
    bool may = sim->rules.data[0].hangs > 0 || sim->rules.data[1].hangs > 0;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        may |= sim->rules.weight[faults[i]] > 0;
    return may;
}

void check_wait(simulation *sim, const sim_worker *worker, const char *why)
{
    const dispatch *state = sim->daemon[worker->daemon].state;
    if (worker->local) {
        sim_break(sim, INV_HONEST, "the local worker %d is to wait: %s", (int)worker->pid, why);
        return;
    }
    for (int i = 0; state && i < state->accounts.used; i++) {
        const account *of = state->accounts.of[i];
        if (is_behind(sim, worker->supervisor, of) && !any_behind(sim, of, is_odd) &&
            !may_look_odd(sim))
            sim_break(sim, INV_HONEST,
                      "worker %d is to wait, and nobody with the key %s is odd: %s",
                      (int)worker->pid, of->name, why);
    }
}

/* Whether this supervisor's key was found to lie, or is watched. The place of a key that nothing
 * holds against may be another's by now. */
static bool is_found_out(const simulation *sim, const dispatch *state, int supervisor)
{
    for (int i = 0; i < state->accounts.used; i++) {
        const account *of = state->accounts.of[i];
        if (is_behind(sim, supervisor, of))
            return of->contradicted_ns != 0 || of->watches > 0;
    }
    return false;
}

void note_refused(simulation *sim, sim_rank *rank, uint64_t row, const json_value *tag)
{
    const char *maker = json_text(json_find(tag, "worker"), "");
    const int number = worker_find(sim, (pid_t)strtol(maker, NULL, 10));
    rank->refused_by = 0;
    if (number < 0 || sim->worker[number]->supervisor < 0 || rank->link < 0)
        return;
    rank->refused_row = row;
    rank->refused_link = sim->link[rank->link].daemon;
    rank->refused_life = sim->link[rank->link].incarnation;
    rank->refused_by = 1 + sim->worker[number]->supervisor;
}

void check_found_out(simulation *sim, sim_rank *rank, uint64_t row)
{
    const int by = rank->refused_by - 1;
    if (by < 0 || row != rank->refused_row || rank->link < 0)
        return;
    const sim_link *link = &sim->link[rank->link];
    const sim_daemon *daemon = &sim->daemon[link->daemon];
    rank->refused_by = 0;
    if (!daemon->state || link->daemon != rank->refused_link ||
        link->incarnation != rank->refused_life || daemon->incarnation != rank->refused_life ||
        sim->rules.forges[by] || sim->rules.flips || sim->rules.weight[FAULT_STATUS] > 0)
        return; /* it is another life, or the maker posed as another, or was admitted */
    if (!is_found_out(sim, daemon->state, by))
        sim_break(sim, INV_DEVIANT,
                  "row %llu was refused and made again, and nothing holds against its maker's key",
                  (unsigned long long)row);
}
