/* trial.c: rounds of trying and agreeing (trial.h). In a round each rank moves its choices on until
 * everything works; then all ranks take the last way that any of them took, and if that is news to
 * one of them, there is another round. Ways only move on, so the rounds end. Last comes what only
 * all ranks together can try: a captured collective. */
#include "trainer/run/trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "trainer/parallel/agree.h"
#include "trainer/run/session_device.h"
#include "trainer/run/trial_work.h"

enum { CAUSE_MAX = 800 };

/* What a rank tells the others: its ways, and those that it began with. */
typedef struct word {
    uint8_t way[CHOICES], first[CHOICES];
} word;

typedef struct trial {
    session *run;
    device_choices *made; /* the device's */
    const comm *group;
    word own;
    uint8_t agreed[CHOICES]; /* after the last round */
    bool begun;              /* there was a round */
    char cause[CHOICES][CAUSE_MAX];
} trial;

static const comm_at AT = {"try kernels", -1};

/* Takes the next way after a failure, and keeps the cause. Returns the failure if there is no other
 * way, or if it is none of the device's or the library's: a lack of memory says nothing of a way,
 * and would make all ranks slower where the remedy is a smaller micro-batch. */
static status move_on(trial *state, int choice, status st)
{
    uint8_t *way = &state->made->way[choice];
    if (st == ST_NO_MEMORY)
        return status_context(st, "trying %s by %s", choice_name(choice), choice_way(choice, *way));
    if (st != ST_BAD_DEVICE && st != ST_UNAVAILABLE)
        return st;
    if (*way == state->made->last[choice]) {
        const bool moved = *way > state->own.first[choice];
        return status_context(st, "%s by %s, after which there is nothing else to try%s%s",
                              choice_name(choice), choice_way(choice, *way),
                              moved ? "; before that: " : "", moved ? state->cause[choice] : "");
    }
    snprintf(state->cause[choice], CAUSE_MAX, "%s", status_text());
    status_clear();
    ++*way;
    return ST_OK;
}

static status try_choice(trial *state, trial_work *work, int choice)
{
    const world *job = state->run->world;
    for (status st; (st = trial_work_run(work, choice)) != ST_OK;) {
        if (job && job->rank_link) /* the job has ended, and the device was given up for it */
            TRY(rank_link_check(job->rank_link));
        TRY(move_on(state, choice, st));
    }
    return ST_OK;
}

static status try_bucket(trial *state, const batch_caps *bucket)
{
    trial_work work;
    status st = trial_work_new(state->run, bucket, &work);
    for (int choice = 0; choice < CHOICES && st == ST_OK; choice++)
        st = try_choice(state, &work, choice);
    trial_work_free(&work);
    return st;
}

/* Tries all shape buckets in the ways that are left in the end: where a bucket moves a way on,
 * those before it have not tried the next one. */
static status try_all(trial *state)
{
    const bucket_list *list = &state->run->buckets;
    const uint8_t *now = state->made->way;
    uint8_t tried[CHOICES];
    int same = 0; /* buckets that were tried in `tried`, one after the other */
    memcpy(tried, now, sizeof tried);
    for (int i = 0; same < list->count; i = (i + 1) % list->count) {
        TRY(try_bucket(state, &list->cap[i]));
        same = memcmp(tried, now, sizeof tried) == 0 ? same + 1 : 1;
        memcpy(tried, now, sizeof tried);
    }
    return ST_OK;
}

/* Corrects the device's description, which bench and the page of a run show. */
static void describe_fallback(device *dev, int choice, const char *now)
{
    const size_t used = strlen(dev->description);
    snprintf(dev->description + used, sizeof dev->description - used, "; %s: %s",
             choice_name(choice), now);
}

/* Says that all ranks take another way, because of rank `who`. */
static status tell_fallback(const trial *state, int choice, int who)
{
    char where[48] = "";
    const char *cause = state->cause[choice], *was = choice_way(choice, state->agreed[choice]),
               *now = choice_way(choice, state->made->way[choice]);
    if (state->group->size > 1)
        snprintf(where, sizeof where, " on rank %d", who);
    if (state->run->conf->training_strict)
        return FAIL(ST_UNAVAILABLE,
                    "training.strict: %s does not work by %s%s: %s; remove the cause, or ask for "
                    "another way with %s, or allow it with training.strict false",
                    choice_name(choice), was, where, cause, choice_remedy(choice));
    log_event(state->group->rank == 0 ? LOG_WARN : LOG_INFO,
              "%s: %s instead of %s on all ranks of this run, since %s failed%s: %s (%s asks for "
              "it from the start)",
              choice_name(choice), now, was, was, where, cause, choice_remedy(choice));
    describe_fallback(state->run->device, choice, now);
    return ST_OK;
}

/* Takes the way on which all ranks agree; said: what each of them has tried. */
static status agree_choice(trial *state, const word *said, int choice, bool *inout_again)
{
    int who = 0;
    for (int rank = 0; rank < state->group->size; rank++) {
        if (!state->begun && said[rank].first[choice] < state->agreed[choice])
            state->agreed[choice] = said[rank].first[choice];
        if (said[rank].way[choice] > said[who].way[choice])
            who = rank;
    }
    const uint8_t way = said[who].way[choice];
    for (int rank = 0; rank < state->group->size; rank++)
        *inout_again |= said[rank].way[choice] != way;
    state->made->way[choice] = way;
    if (way == state->agreed[choice])
        return ST_OK;
    TRY(comm_host_broadcast(state->group, AT, state->cause[choice], CAUSE_MAX, who));
    TRY(tell_fallback(state, choice, who));
    state->agreed[choice] = way;
    return ST_OK;
}

/* Agrees with all ranks on the ways, after a rank has tried its own; `tried` is how that went.
 * *out_again: a rank is to take a way that it has not tried. */
static status agree_all(trial *state, status tried, bool *out_again)
{
    bool again = false;
    TRY(comm_agree(state->group, AT, tried, 0));
    word *said = calloc((size_t)state->group->size, sizeof *said);
    if (!said)
        return FAIL(ST_NO_MEMORY, "no memory for the answers of %d ranks", state->group->size);
    memcpy(state->own.way, state->made->way, sizeof state->own.way);
    status st = comm_host_all_gather(state->group, AT, &state->own, said, sizeof *said);
    for (int choice = 0; choice < CHOICES && st == ST_OK; choice++)
        st = agree_choice(state, said, choice, &again);
    free(said);
    state->begun = true;
    *out_again = again;
    return st;
}

/* Captures a sum over the ranks, as the steps of several ranks have it, and runs it only where all
 * have captured it: a rank that runs a graph waits in it for the others. A rank that fails before
 * the capture cannot agree on anything: the others are in the sum. It ends the job, as in a step.
 */
static status try_shared_graph(trial *state)
{
    trial_work work;
    graph *captured = NULL;
    bool again;
    if (state->group->size == 1 || state->made->way[CHOICE_GRAPHS] == GRAPHS_NONE)
        return ST_OK;
    status st = trial_work_empty(state->run, &work);
    if (st == ST_OK)
        st = trial_work_sum(&work, state->group, AT);
    if (st == ST_OK) {
        st = trial_work_capture_sum(&work, state->group, AT, &captured);
        if (st != ST_OK)
            st = move_on(state, CHOICE_GRAPHS, st);
        st = agree_all(state, st, &again);
    }
    if (st == ST_OK && state->made->way[CHOICE_GRAPHS] != GRAPHS_NONE) {
        st = work.dev->backend->graph_launch(work.queue, captured);
        if (st == ST_OK)
            st = work.dev->backend->wait(work.queue);
    }
    if (captured)
        work.dev->backend->graph_free(&captured);
    trial_work_free(&work);
    return st;
}

/* Notes what our own kernels do whatever is chosen: text whose documents go on after prefixes, or
 * whose keys are other ranks' too. */
static void note_ours(const session *run, device_choices *made)
{
    if (run->conf->data_group == GROUP_SHARED_PREFIX || run->mesh.layout.context > 1)
        made->also_ours |= (uint8_t)(1u << CHOICE_TEXT_FORWARD | 1u << CHOICE_TEXT_BACKWARD);
}

status trial_run(session *run)
{
    device *dev = run->device;
    const comm alone = comm_alone("world");
    const bool single = world_simulated(run->world) != NULL;
    trial state = {.run = run,
                   .made = &dev->choices,
                   .group = single ? &alone : mesh_comm(&run->mesh, MESH_WORLD)};
    if (!dev->choices.open)
        return ST_OK;
    bool uncaptured;
    TRY(session_uncaptured(run, &uncaptured));
    if (uncaptured)
        dev->choices.way[CHOICE_GRAPHS] = GRAPHS_NONE;
    memcpy(state.own.first, dev->choices.way, sizeof state.own.first);
    memcpy(state.agreed, dev->choices.way, sizeof state.agreed);
    for (int choice = 0; choice < CHOICES; choice++)
        snprintf(state.cause[choice], CAUSE_MAX, "it is not there");
    note_ours(run, &dev->choices);
    const int64_t captures = dev->counts.captures;
    bool again = true;
    status st = ST_OK;
    dev->choices.strict = true;
    while (again && st == ST_OK)
        st = agree_all(&state, try_all(&state), &again);
    if (st == ST_OK)
        st = try_shared_graph(&state);
    dev->choices.strict = run->conf->training_strict;
    dev->counts.captures = captures; /* they are no part of a step's */
    comm_ledger_close_step(state.group->ledger);
    return st;
}
