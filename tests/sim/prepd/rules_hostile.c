/* SPDX-License-Identifier: Apache-2.0 */
/* rules_hostile.c: whom the daemon may believe, and who means harm. It is drawn last, so a seed
 * whose schedule has none of it is what it was before. */
#include "tests/sim/prepd/rules.h"

/* What two of them say differently, a third decides. */
enum { TRUSTED_KEPT = 3 };

/* Who has the data are other machines alone, whose keys are trusted. */
static void trust_others(sim_rules *inout)
{
    inout->keyed = true;
    for (int i = 0; i < inout->n_daemons; i++) {
        inout->trusted[i] = true;
        inout->kept[i] = TRUSTED_KEPT;
        inout->bent[i] = BENT_HONEST;
    }
}

/* Workers of several machines do the same: what they say agrees. Some share a key. */
static void add_liars(sim_random *luck, sim_rules *inout)
{
    static const worker_bent bents[] = {
        BENT_LIES_ROWS, BENT_LIES_ROWS,  BENT_LIES_ROWS,   BENT_LIES_DIGEST, BENT_LIES_DIGEST,
        BENT_LIES_IDS,  BENT_LIES_KILLS, BENT_LIES_FAILED, BENT_LIES_FAILED, BENT_LIES_RECORDS,
        BENT_LIES_ON,   BENT_BREACHER,   BENT_STALLS,      BENT_MUTE,        BENT_FLOODS,
        BENT_FLOODS,    BENT_HOGS,       BENT_HOGS};
    const worker_bent bent = bents[sim_random_below(luck, sizeof bents / sizeof *bents)];
    const int count = (int)sim_random_between(luck, 1, 3);
    const bool one_key = sim_random_chance(luck, 1, 3), forges = sim_random_chance(luck, 1, 3),
               obstinate = sim_random_chance(luck, 1, 2);
    const bool newer = sim_random_chance(luck, 1, 5);
    for (int k = 0; k < count && inout->n_supervisors < MOST_SUPERVISORS; k++) {
        const int number = inout->n_supervisors++;
        inout->bent[number] = bent;
        inout->kept[number] = (int)sim_random_between(luck, 1, 3);
        inout->arrive_ns[number] =
            sim_random_chance(luck, 1, 2) ? 0 : (int64_t)sim_random_below(luck, 3000000000u);
        inout->ships[number] = false;
        inout->forges[number] = forges;
        inout->newer[number] = newer;
        inout->obstinate[number] = obstinate;
        inout->key[number] = one_key ? MOST_SUPERVISORS : number;
    }
}

void rules_draw_hostile(sim_random *luck, sim_rules *inout, conf *inout_options)
{
    inout->keyed = sim_random_chance(luck, 1, 2);
    inout_options->is_held_out = sim_random_chance(luck, 1, 4);
    inout->lies_of = (int)sim_random_between(luck, 1, 5);
    for (int i = 0; i < MOST_SUPERVISORS; i++)
        inout->key[i] = i;
    if (inout_options->prepd_workers < 0 && sim_random_chance(luck, 1, 2))
        trust_others(inout);
    for (int i = 0; i < inout->n_supervisors; i++)
        inout->newer[i] = sim_random_chance(luck, 1, 8);
    if (!sim_random_chance(luck, 1, 3))
        return;
    inout->n_hosts = sim_random_chance(luck, 1, 2) ? inout->n_hosts : MOST_SUPERVISORS + 1;
    add_liars(luck, inout);
    if (sim_random_chance(luck, 1, 2))
        inout_options->prepd_audit = 1;
    if (inout->keyed && inout->n_jobs == 1 && sim_random_chance(luck, 1, 2)) {
        inout->job[inout->n_jobs++] =
            (sim_job_rules){.stream = sim_random_chance(luck, 1, 2) ? "train" : "eval",
                            .ranks = 1,
                            .refuses = true};
    }
    inout->flips = sim_random_chance(luck, 1, 6);
    inout->slow_local = sim_random_chance(luck, 1, 6);
}
