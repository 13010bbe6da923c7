/* SPDX-License-Identifier: Apache-2.0 */
/* rules_seldom.c: what comes in a few of a hundred schedules each, whatever else they have. It is
 * drawn after everything else, so a seed that has none of it is what it was before. */
#include "tests/sim/prepd/rules.h"

static const int64_t SECOND = 1000000000;

/* A consumer reads held-out rows beside the training stream, all or some of them, again and again,
 * each time from the first. */
static void read_again(sim_random *luck, sim_rules *inout)
{
    sim_job_rules *job = &inout->job[1];
    if (inout->n_jobs < 2)
        job->ranks = 1;
    inout->n_jobs = 2;
    job->stream = "eval";
    job->again = (int)sim_random_between(luck, 1, 4);
    job->rows = sim_random_chance(luck, 1, 2) ? sim_random_between(luck, 1, 6) : INT64_MAX;
}

/* Workers cannot begin when their daemon starts, for a time that passes before it gives up. What
 * would end its pauses early does not happen. */
static void begin_badly(sim_random *luck, sim_rules *inout, conf *inout_options)
{
    static const sim_fault none[] = {FAULT_JUMP, FAULT_SCALE, FAULT_RELOAD, FAULT_NO_PROCESS};
    if (inout_options->prepd_workers <= 0)
        return;
    inout_options->prepd_workers = sim_random_between(luck, 3, 8);
    inout->bad_start_ns = sim_random_between(luck, 6 * SECOND / 5, 3 * SECOND);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        inout->weight[none[i]] = 0;
}

/* Workers of a poor copy start anew before they can be dismissed, so their supervisor never hears
 * that its copy is poor. */
static void recycle_poor_copy(sim_random *luck, sim_rules *inout, conf *inout_options)
{
    const int number = rules_free_supervisor(luck, inout, inout_options);
    if (number < 0)
        return;
    inout->bent[number] = BENT_POOR_COPY;
    inout->ships[number] = false;
    inout->recycle_leases = sim_random_between(luck, 1, 2);
    inout_options->prepd_audit = sim_random_chance(luck, 1, 2);
}

/* The index is begun by a machine with a poor copy alone, and its daemon cannot look at some of the
 * files that this one lacks. */
static void begin_with_poor_copy(sim_random *luck, sim_rules *inout, conf *inout_options)
{
    inout_options->prepd_workers = -1;
    inout_options->prepd_solo_deaths = 2;
    inout->n_daemons = 1;
    inout->split = false;
    inout->n_supervisors = 2;
    for (int i = 0; i < 2; i++) {
        inout->kept[i] = (int)sim_random_between(luck, 1, 2);
        inout->ships[i] = false;
    }
    inout->bent[0] = BENT_HONEST;
    inout->bent[1] = BENT_POOR_COPY;
    inout->arrive_ns[0] = sim_random_between(luck, SECOND, 4 * SECOND);
    inout->arrive_ns[1] = 0;
    inout->weight[FAULT_NO_SIGHT] = 8;
}

/* Questions on few pictures, of which many turn out to be bad, while jobs start again with lists
 * that name some of the questions on a picture and not all. */
static void doubt_prefixes(sim_random *luck, sim_rules *inout, conf *inout_options)
{
    sim_data_rules *data = &inout->data[0];
    inout_options->data_group = GROUP_SHARED_PREFIX;
    inout_options->training_epochs = (double)sim_random_between(luck, 1, 3);
    inout_options->prepd_workers = sim_random_between(luck, 2, 5);
    inout->data[0].begins = inout->data[1].begins = true;
    data->n_pictures = 1 + data->n_samples / (int64_t)sim_random_between(luck, 4, 12);
    data->without_picture = 20;
    data->plain = data->clips = 0;
    data->fails = 300;
    data->vanishes = 100;
    data->later = 500;
    inout->weight[FAULT_RESTART_JOB] = 8;
    inout->lists_by_hand = true;
}

/* One row at a time, in which something is bad, for workers that start anew every few leases, some
 * of them on another machine: often a fresh one waits that may not try what another has to try. */
static void wait_for_fresh(sim_random *luck, sim_rules *inout, conf *inout_options)
{
    sim_data_rules *data = &inout->data[0];
    inout_options->prepd_workers = sim_random_between(luck, 2, 3);
    inout->recycle_leases = sim_random_between(luck, 2, 4);
    const int number = rules_free_supervisor(luck, inout, inout_options);
    inout->credit = 1;
    if (inout->n_jobs == 1)
        inout->job[0].ranks = 1;
    data->fails = 150;
    data->later = 0;
    if (number < 0)
        return;
    inout->bent[number] = sim_random_chance(luck, 1, 2) ? BENT_HONEST : BENT_POOR_COPY;
    inout->ships[number] = false;
}

void rules_draw_seldom(sim_random *luck, sim_rules *inout, conf *inout_options)
{
    if (sim_random_chance(luck, 1, 25))
        read_again(luck, inout);
    if (sim_random_chance(luck, 1, 25))
        inout->hold_every = (int)sim_random_between(luck, 2, 12);
    if (sim_random_chance(luck, 1, 8))
        inout->other_cursors = true;
    if (inout->n_daemons == 1 && sim_random_chance(luck, 1, 20)) {
        inout->appear = true;
        inout->data[0].not_there = inout->data[1].not_there = 40;
    }
    if (sim_random_chance(luck, 1, 10))
        inout->weight[FAULT_NO_STAT] = (int)sim_random_between(luck, 1, 8);
    if (sim_random_chance(luck, 1, 12))
        inout->weight[FAULT_NO_MEMORY] = (int)sim_random_between(luck, 1, 8);
    switch (sim_random_below(luck, 40)) {
    case 0:
        begin_badly(luck, inout, inout_options);
        break;
    case 1:
        recycle_poor_copy(luck, inout, inout_options);
        break;
    case 2:
        begin_with_poor_copy(luck, inout, inout_options);
        break;
    case 3:
        doubt_prefixes(luck, inout, inout_options);
        break;
    case 4:
        wait_for_fresh(luck, inout, inout_options);
        break;
    default:
        break;
    }
}
