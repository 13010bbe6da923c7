/* SPDX-License-Identifier: Apache-2.0 */
/* rules.c: draws the rules of a schedule. */
#include "tests/sim/prepd/rules.h"

#include "tests/unit/prepd/conf_defaults.h"

const char *const fault_words[N_FAULTS] = {
#define SIM_FAULT_WORDS(name, words) [name] = words,
    SIM_FAULTS(SIM_FAULT_WORDS)
#undef SIM_FAULT_WORDS
};

static int64_t pick(sim_random *luck, const int64_t *from, int count)
{
    return from[sim_random_below(luck, (uint64_t)count)];
}
#define PICK(luck, ...)                                                                            \
    pick(luck, (const int64_t[]){__VA_ARGS__},                                                     \
         (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

static void draw_options(sim_random *luck, sim_rules *inout_rules, conf *out)
{
    *out = conf_defaults();
    out->prepd_endpoint =
        sim_random_chance(luck, 1, 2) ? "ipc:///sim/prepd.sock" : "tcp://10.0.0.1:7000";
    out->training_seq_len = PICK(luck, 256, 384, 512, 768);
    out->training_global_batch_size = PICK(luck, 1, 2, 4, 4, 8, 8, 16, 64);
    out->training_epochs = (double)PICK(luck, 1, 1, 2, 3);
    out->training_seed = (int64_t)sim_random_below(luck, 1000);
    out->data_window = PICK(luck, 8, 16, 32, 64);
    out->data_group = (int)PICK(luck, GROUP_NONE, GROUP_NONE, GROUP_SHARED_IMAGE,
                                GROUP_SHARED_PREFIX, GROUP_SHARED_PREFIX);
    out->data_quarantine_limit = 100;
    out->prepd_workers = PICK(luck, -1, 1, 1, 2, 2, 3, 5);
    out->prepd_sample_timeout = (double)PICK(luck, 1, 3, 10);
    out->prepd_audit = (double)PICK(luck, 0, 0, 1, 4) / 4;
    out->prepd_solo_deaths = PICK(luck, 1, 2, 2, 2, 3);
    inout_rules->recycle_leases = PICK(luck, 3, 20, 100000, 100000);
    out->prepd_buffer_bytes = PICK(luck, 1 << 21, 1 << 23, (int64_t)1 << 32);
    out->data_ship = sim_random_chance(luck, 2, 3);
    out->prepd_ship_bytes = PICK(luck, 1, 300, 1 << 20);
}

/* In a third of the schedules the data has several sources, with weights or without. Some files can
 * be read only from certain points on. */
static void draw_sources(sim_random *luck, sim_data_rules *out)
{
    const bool weighted = sim_random_chance(luck, 2, 3);
    out->n_sources = (int)PICK(luck, 1, 1, 1, 1, 2, 3);
    out->piece_samples = PICK(luck, 0, 0, 0, 4, 15);
    for (int i = 0; weighted && i < out->n_sources; i++)
        out->weight[i] = (int)sim_random_between(luck, 1, 9);
}

/* How often something is wrong with the data: in a third of the schedules, never. */
static void draw_data(sim_random *luck, const conf *options, int64_t samples, sim_data_rules *out)
{
    const int bad = (int)PICK(luck, 0, 1, 4);
    *out = (sim_data_rules){.n_samples = samples,
                            .n_pictures = 1 + (int64_t)sim_random_below(luck, (uint64_t)samples),
                            .begins = options->data_group == GROUP_SHARED_PREFIX,
                            .common_text = (int32_t)PICK(luck, 0, 3, 80),
                            .longest_text = (int32_t)options->training_seq_len * 2,
                            .bad_header = 8 * bad,
                            .kills_header = 5 * bad,
                            .not_there = 3 * bad,
                            .fails = 10 * bad,
                            .vanishes = 4 * bad,
                            .changes = 4 * bad,
                            .kills = 8 * bad,
                            .hangs = 4 * bad,
                            .not_adapted = 5 * bad,
                            .refused = 5 * bad,
                            .text_kills = 4 * bad,
                            .later = (int)PICK(luck, 0, 500),
                            .clips = (int)PICK(luck, 0, 0, 100),
                            .plain = (int)PICK(luck, 0, 0, 60),
                            .without_picture = (int)PICK(luck, 20, 200, 500)};
    draw_sources(luck, out);
}

static void draw_jobs(sim_random *luck, const conf *options, sim_rules *out)
{
    const int64_t most =
        options->training_global_batch_size < 64 ? options->training_global_batch_size : 64;
    out->n_jobs = sim_random_chance(luck, 1, 5) ? 2 : 1;
    for (int i = 0; i < out->n_jobs; i++) {
        const char *stream = i == 0 ? "train" : sim_random_chance(luck, 2, 3) ? "eval" : "sample";
        out->job[i] = (sim_job_rules){.stream = stream,
                                      .ranks = (int)sim_random_between(luck, 1, most),
                                      .start_ns = (int64_t)sim_random_below(luck, 3000000000u)};
        if (sim_random_chance(luck, 1, 2))
            out->job[i].ranks = 1;
    }
}

/* Files of videos, for which workers need one more fingerprint. Where only held-out data has them,
 * that is found out beside a stream that runs. */
static void draw_videos(sim_random *luck, sim_rules *out)
{
    out->data[0].videos = sim_random_chance(luck, 1, 4);
    out->data[1].videos = sim_random_chance(luck, 1, 3);
    if (out->data[0].videos || !out->data[1].videos || !sim_random_chance(luck, 1, 2))
        return;
    out->n_jobs = 2;
    out->job[1] = (sim_job_rules){
        .stream = "eval", .ranks = 1, .start_ns = sim_random_between(luck, 300000000, 2000000000)};
}

/* Every daemon has someone honest to work for it: a local worker, or the first supervisor that
 * comes to it. */
static void draw_people(sim_random *luck, const conf *options, sim_rules *out)
{
    const bool any_local = options->prepd_workers >= 0;
    out->n_daemons = (int)PICK(luck, 1, 1, 1, 2, 3);
    out->split = out->n_daemons > 1 && sim_random_chance(luck, 1, 2);
    out->together = 1;
    out->most_ranks =
        (int)(options->training_global_batch_size < 64 ? options->training_global_batch_size : 64);
    out->n_hosts = 3;
    out->n_supervisors = (any_local ? 0 : out->n_daemons) + (int)sim_random_below(luck, 3);
    for (int i = 0; i < out->n_supervisors; i++) {
        out->kept[i] = (int)sim_random_between(luck, 1, 3);
        out->arrive_ns[i] = (int64_t)sim_random_below(luck, 2000000000u);
        if ((any_local || i >= out->n_daemons) && sim_random_chance(luck, 1, 2))
            out->bent[i] = (worker_bent)sim_random_below(luck, N_BENTS);
        /* Where files are not sent, workers without a copy are refused; one daemon may have to do
         * with them. */
        out->ships[i] = out->bent[i] != BENT_POOR_COPY && sim_random_chance(luck, 1, 2) &&
                        (options->data_ship || any_local || i >= out->n_daemons);
    }
}

static void draw_faults(sim_random *luck, sim_rules *out)
{
    const uint64_t share = (uint64_t)sim_random_between(luck, 0, 4);
    for (int i = 0; i < FAULT_TWIN; i++)
        out->weight[i] =
            sim_random_chance(luck, share, 6) ? (int)sim_random_between(luck, 1, 8) : 0;
    out->fault_every_ns = PICK(luck, 100000000, 400000000, 1500000000);
    out->calm_ns = PICK(luck, 5, 15, 40) * INT64_C(1000000000);
}

/* Which jobs give their ranks names. Changes nothing else of a seed. */
static void draw_names(sim_random *luck, sim_rules *out)
{
    for (int i = 0; i < MOST_JOBS; i++)
        out->named[i] = sim_random_chance(luck, 3, 4);
    out->weight[FAULT_TWIN] =
        sim_random_chance(luck, 1, 3) ? (int)sim_random_between(luck, 1, 8) : 0;
}

static void draw_hopeless(sim_random *luck, sim_rules *out)
{
    out->hopeless = (hopeless)sim_random_between(luck, HOPELESS_WORKERS_SAY, HOPELESS_PRINTS_SAY);
    out->n_supervisors = 0;
    out->n_daemons = 1;
    for (int i = 0; i < N_FAULTS; i++)
        out->weight[i] = 0;
}

static void draw_any(const sim_choice *choice, sim_random *luck, sim_rules *out, conf *out_options)
{
    sim_random real = sim_random_split(luck, 9); /* changes nothing else of a seed */
    sim_random rare = sim_random_split(luck, 10), names = sim_random_split(luck, 11),
               seldom = sim_random_split(luck, 12), hostile = sim_random_split(luck, 13);
    *out = (sim_rules){.real_rows = sim_random_chance(&real, 1, choice->real_every)};
    draw_options(luck, out, out_options);
    draw_data(luck, out_options, PICK(luck, 20, 60, 100, 160), &out->data[0]);
    draw_data(luck, out_options, PICK(luck, 5, 20, 40), &out->data[1]);
    draw_jobs(luck, out_options, out);
    draw_videos(luck, out);
    draw_people(luck, out_options, out);
    draw_faults(luck, out);
    draw_names(&names, out);
    out->credit = PICK(luck, 1, 300000, 2000000, 1 << 28);
    out->row_ns = PICK(luck, 1, 5, 20) * INT64_C(1000000);
    out->step_ns = PICK(luck, 1, 1, 1, 10, 10, 10, 50, 50, 50, 1500) * INT64_C(1000000);
    out->wordy = sim_random_chance(luck, 1, 12);
    out->for_command = sim_random_chance(luck, 1, 12);
    out->drain_at_end = sim_random_chance(luck, 1, 2);
    if (out_options->prepd_workers > 0 && sim_random_chance(luck, 1, 40))
        draw_hopeless(luck, out);
    out->split &= out->n_daemons > 1 && !out->for_command; /* a command's daemon serves all */
    if (!out->hopeless) {
        rules_draw_rare(&rare, out, out_options);
        rules_draw_seldom(&seldom, out, out_options);
        rules_draw_hostile(&hostile, out, out_options);
    }
}

enum { DAEMONS = 128, RANKS_EACH = 8, RANKS = DAEMONS * RANKS_EACH };

/* Makes of a schedule one of many daemons, and many ranks of one stream. */
static void make_thousand(sim_random *luck, sim_rules *out, conf *out_options)
{
    out_options->training_seq_len = 256;
    out_options->training_global_batch_size = RANKS;
    out_options->training_epochs = 1;
    out_options->data_window = PICK(luck, 64, 512);
    out_options->data_group = GROUP_NONE;
    out_options->prepd_workers = PICK(luck, 1, 2);
    out_options->prepd_audit = (double)PICK(luck, 0, 0, 1) / 4;
    draw_data(luck, out_options, PICK(luck, 2500, 4000, 6000), &out->data[0]);
    out->data[0].longest_text = (int32_t)out_options->training_seq_len;
    out->data[0].plain = 700;
    out->data[0].videos = out->data[1].videos = false;
    out->n_daemons = DAEMONS;
    out->together = RANKS_EACH;
    out->most_ranks = RANKS;
    out->split = out->one_builds = true;
    out->n_jobs = 1;
    out->job[0] = (sim_job_rules){.stream = "train", .ranks = RANKS};
    out->n_supervisors = 0;
    out->hopeless = HOPELESS_NOT;
    out->for_command = out->wordy = out->real_rows = out->appear = out->other_cursors = false;
    out->flips = out->slow_local = false;
    out->bad_start_ns = out->hold_every = 0;
    draw_faults(luck, out);
    out->fault_every_ns = 100000000;
    if (out->weight[FAULT_RESTART_JOB] > 0) /* a thousand ranks greet again each time */
        out->weight[FAULT_RESTART_JOB] = 1;
}

void rules_draw(const sim_choice *choice, sim_random *luck, sim_rules *out, conf *out_options)
{
    draw_any(choice, luck, out, out_options);
    if (choice->thousand)
        make_thousand(luck, out, out_options);
}
