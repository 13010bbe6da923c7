/* SPDX-License-Identifier: Apache-2.0 */
/* play.c: makes the world of a schedule, lets its events come, and takes it apart again. */
#include "tests/sim/prepd/play.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/common/sim_memory.h"
#include "tests/sim/prepd/sim_faults.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/real_receiver.h"
#include "tests/sim/prepd/work.h"

/* From calm_ns on everything must be done within this time. */
static const int64_t PATIENCE_NS = 7200000000000;

static void must_do(status st)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "a schedule cannot be made: %s\n", status_text());
    abort();
}

static void make_data(simulation *sim)
{
    hash128 none = {{0}};
    sim_random luck = sim_random_of(sim->seed * 31);
    for (int i = 0; i < 2; i++) {
        sim_data_init(&sim->data[i], &sim->rules.data[i], sim_random_u64(&luck));
        if (i == 0)
            must_do(conf_copy(&sim->options, &sim->data_options[i]));
        else
            must_do(conf_eval(&sim->options, &sim->data_options[i]));
        must_do(conf_stream_json(&sim->options, none, &sim->stream_json[i]));
    }
}

static void begin(simulation *sim)
{
    sim_random luck = sim_random_of(sim->seed);
    sim->delays = sim_random_split(&luck, 1);
    sim->faults = sim_random_split(&luck, 2);
    sim->people = sim_random_split(&luck, 3);
    sim->lies = sim_random_split(&luck, 4);
    sim->now_ns = SECOND;
    sim->next_pid = 2000;
    rules_draw(&sim->choice, &luck, &sim->rules, &sim->options);
    /* With one builder, the calm is counted from when the other daemons start. */
    sim->calm_ns = sim->now_ns + (sim->rules.one_builds ? PATIENCE_NS / 4 : sim->rules.calm_ns);
    make_data(sim);
    real_rows_begin(sim);
    sim->daemon = calloc((size_t)sim->rules.n_daemons, sizeof *sim->daemon);
    if (!sim->daemon)
        abort();
    for (int i = 0; i < sim->rules.n_daemons; i++) {
        sim->daemon[i].sim = sim;
        sim->daemon[i].number = i;
        rules_ranks_of(&sim->rules, i, sim->daemon[i].ranks);
        if (i == 0 || !sim->rules.one_builds)
            daemon_start(sim, i);
    }
    for (int i = 0; i < sim->rules.n_supervisors; i++)
        supervisor_start(sim, i);
    jobs_start(sim);
    fault_plan(sim);
    sim_queue_put(&sim->queue,
                  (sim_event){.at_ns = sim->calm_ns + PATIENCE_NS, .kind = EVENT_DEADLINE});
}

static void happen(simulation *sim, const sim_event *event)
{
    switch ((event_kind)event->kind) {
    case EVENT_UP:
    case EVENT_DOWN:
    case EVENT_ENDED:
        link_event(sim, event);
        break;
    case EVENT_TURN:
    case EVENT_DAEMON:
    case EVENT_SECTION:
    case EVENT_PRINTS:
    case EVENT_CHILD:
        daemon_event(sim, event);
        break;
    case EVENT_WORKER:
        worker_event(sim, event);
        break;
    case EVENT_SUPERVISOR:
        supervisor_event(sim, event);
        break;
    case EVENT_RANK:
        rank_event(sim, event);
        break;
    case EVENT_FAULT:
        fault_event(sim, event);
        break;
    case EVENT_DEADLINE:
        check_deadline(sim);
        break;
    }
}

static bool reaches_core(const sim_event *event)
{
    return event->kind == EVENT_UP || event->kind == EVENT_TURN || event->kind == EVENT_SECTION ||
           event->kind == EVENT_PRINTS || event->kind == EVENT_CHILD || event->kind == EVENT_FAULT;
}

/* Checks the state of a daemon's core, if anything was given to it. */
static void look_at(simulation *sim, sim_daemon *daemon)
{
    if (daemon->touched && daemon->state && !daemon->stopping && daemon->state->outcome == ST_OK)
        check_daemon(sim, daemon);
    daemon->touched = false;
}

static void go_through(simulation *sim)
{
    sim_event event;
    while (!sim->broken[0] && !sim->over && sim_queue_take(&sim->queue, &event)) {
        sim->now_ns = event.at_ns;
        sim_log_note(&sim->log, event.at_ns, event.kind, event.who, (uint64_t)event.word);
        happen(sim, &event);
        if (reaches_core(&event)) {
            sim->stats->events++;
            for (int i = 0; i < sim->rules.n_daemons; i++)
                look_at(sim, &sim->daemon[i]);
        }
        sim->over |= jobs_are_done(sim) && fault_end(sim);
    }
}

static void take_apart(simulation *sim)
{
    sim_event event;
    for (int i = 0; i < sim->rules.n_daemons; i++)
        daemon_free(&sim->daemon[i]);
    for (int i = 0; i < sim->n_workers; i++) {
        sim_worker *worker = sim->worker[i];
        work_forget(&worker->job);
        while (worker->n_inbox > 0)
            wire_msg_free(&worker->inbox[--worker->n_inbox]);
        free(worker);
    }
    while (sim_queue_take(&sim->queue, &event))
        wire_msg_free((wire_msg **)&event.data);
    sim_queue_done(&sim->queue);
    heard_book_done(&sim->heard);
    real_rows_done(sim);
    jobs_free(sim);
    for (int i = 0; i < 3; i++)
        if (sim->expected_made[i])
            reference_done(&sim->expected[i]);
    for (int i = 0; i < 2; i++) {
        sim_data_done(&sim->data[i]);
        conf_done(&sim->data_options[i]);
        free(sim->stream_json[i]);
    }
    free(sim->worker);
    free(sim->link);
    free(sim->daemon);
    free(sim->accidents);
}

sim_played play_schedule(uint64_t seed, const sim_choice *choice, FILE *trace, sim_stats *stats)
{
    static simulation sim;
    memset(&sim, 0, sizeof sim);
    sim.seed = seed;
    sim.choice = *choice;
    sim.stats = stats;
    sim.log = sim_log_begin(seed, trace);
    const uint64_t before = stats->events;
    sim_row_init();
    const int64_t blocks = sim_memory_blocks();
    begin(&sim);
    go_through(&sim);
    stats->schedules++;
    stats->virtual_ns += (uint64_t)sim.now_ns;
    take_apart(&sim);
    check_memory_is_back(&sim, blocks);
    sim_played played = {.events = stats->events - before, .hash = sim.log.hash};
    memcpy(played.broken, sim.broken, sizeof played.broken);
    return played;
}
