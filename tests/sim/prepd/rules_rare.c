/* SPDX-License-Identifier: Apache-2.0 */
/* rules_rare.c: what few schedules have, and these have much of it. What is rare everywhere meets
 * nothing else that is rare. */
#include "tests/sim/prepd/rules.h"

/* Half of the pictures and some of the texts are bad, in one way or another. */
static void spoil_data(sim_random *luck, sim_data_rules *inout)
{
    const int times = (int)sim_random_between(luck, 6, 16);
    inout->bad_header = inout->kills_header = 2 * times;
    inout->not_there = times;
    inout->fails = 6 * times;
    inout->vanishes = 3 * times;
    inout->changes = 3 * times;
    inout->kills = 6 * times;
    inout->hangs = 3 * times;
    inout->text_kills = 5 * times;
}

/* Rows take longer, all of their items together, than a worker may take for one. */
static void slow_down(sim_rules *inout, conf *inout_options)
{
    inout->row_ns = INT64_C(400000000);
    inout_options->prepd_sample_timeout = 1;
}

/* Whether a worker of this supervisor may do as it likes,
 * since there is an honest one beside it. */
static bool is_not_alone(const sim_rules *rules, const conf *options, int supervisor)
{
    return options->prepd_workers > 0 || supervisor >= rules->n_daemons;
}

int rules_free_supervisor(sim_random *luck, sim_rules *inout, const conf *options)
{
    int number = inout->n_supervisors - 1;
    if ((number < 0 || !is_not_alone(inout, options, number)) &&
        inout->n_supervisors < MOST_SUPERVISORS) {
        number = inout->n_supervisors++;
        inout->kept[number] = (int)sim_random_between(luck, 1, 3);
        inout->arrive_ns[number] = (int64_t)sim_random_below(luck, 1000000000u);
    }
    return number >= 0 && is_not_alone(inout, options, number) ? number : -1;
}

/* The workers of a supervisor differ from honest ones, each time in another way. */
static void bend_workers(sim_random *luck, sim_rules *inout, const conf *options)
{
    static const worker_bent bents[] = {BENT_LIES_FAILED,  BENT_LIES_FAILED, BENT_LIES_ON,
                                        BENT_LIES_ON,      BENT_POOR_COPY,   BENT_POOR_COPY,
                                        BENT_LIES_ROWS,    BENT_LIES_IDS,    BENT_BREACHER,
                                        BENT_LIES_RECORDS, BENT_LIES_RECORDS};
    const int number = rules_free_supervisor(luck, inout, options);
    const worker_bent bent = bents[sim_random_below(luck, sizeof bents / sizeof *bents)];
    if (number < 0)
        return;
    inout->bent[number] = bent;
    if (sim_random_chance(luck, 1, 2)) /* before the first local worker */
        inout->arrive_ns[number] = 0;
    inout->ships[number] &= bent != BENT_POOR_COPY;
}

/* A mixture that takes the samples of its first source again and again, also within a row. */
static void repeat_samples(sim_data_rules *inout)
{
    inout->n_sources = 2;
    inout->weight[0] = 9;
    inout->weight[1] = 1;
}

void rules_draw_rare(sim_random *luck, sim_rules *inout, conf *inout_options)
{
    const bool spoilt = sim_random_chance(luck, 1, 6),
               bent = sim_random_chance(luck, spoilt ? 3 : 1, 6);
    if (sim_random_chance(luck, 1, 24))
        slow_down(inout, inout_options);
    if (spoilt) {
        spoil_data(luck, &inout->data[0]);
        spoil_data(luck, &inout->data[1]);
        if (sim_random_chance(luck, 1, 3))
            repeat_samples(&inout->data[0]);
    }
    if (bent)
        bend_workers(luck, inout, inout_options);
    /* Few rows are checked where few are drawn, and then no lie may show. */
    if (bent && sim_random_chance(luck, 1, 2))
        inout_options->prepd_audit = 1;
    if (bent && inout_options->prepd_workers > 1 && sim_random_chance(luck, 1, 2))
        inout_options->prepd_workers = 1;
}
