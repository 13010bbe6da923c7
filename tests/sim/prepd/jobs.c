/* SPDX-License-Identifier: Apache-2.0 */
/* jobs.c: jobs of several ranks that read one stream together, stop, and start again with as many
 * or other ranks from the cursor of any of them. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/jobs.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"

static void *must_have(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

static int rank_new(simulation *sim, int job, int rank)
{
    if (sim->n_ranks == sim->ranks_room) {
        sim->ranks_room = 2 * sim->ranks_room + 16;
        sim->rank = realloc(sim->rank, (size_t)sim->ranks_room * sizeof *sim->rank);
    }
    sim_rank *made = calloc(1, sizeof *made);
    if (!sim->rank || !made)
        abort();
    *made = (sim_rank){
        .job = job, .rank = rank, .link = -1, .daemon = rules_daemon_of(&sim->rules, rank)};
    sim->rank[sim->n_ranks] = made;
    return sim->n_ranks++;
}

static void begin_life(simulation *sim, int number, int ranks)
{
    sim_stream_job *job = &sim->job[number];
    const uint64_t batch = (uint64_t)sim->options.training_global_batch_size;
    job->ranks = ranks;
    job->first = sim->n_ranks;
    job->lives++;
    job->n_reading = ranks;
    if (job->taken) /* what is taken again counts anew */
        memset(job->taken + job->begin, 0,
               job->rows->n_rows > job->begin ? job->rows->n_rows - job->begin : 0);
    for (int i = 0; i < ranks; i++) {
        const int made = rank_new(sim, number, i);
        sim->rank[made]->done_steps = job->begin / batch;
        rank_begin(sim, made, job->begin);
    }
}

static reference *rows_of(simulation *sim, const char *stream)
{
    const int which = strcmp(stream, "eval") == 0 ? 1 : strcmp(stream, "sample") == 0 ? 2 : 0;
    if (!sim->expected_made[which] &&
        !reference_init(&sim->expected[which], &sim->data[which == 1],
                        &sim->data_options[which == 1], which == 2 ? SLOW_SAMPLES : SLOW_PACKED))
        return NULL;
    sim->expected_made[which] = true;
    return &sim->expected[which];
}

void jobs_start(simulation *sim)
{
    for (int i = 0; i < sim->rules.n_jobs; i++) {
        sim_stream_job *job = &sim->job[sim->n_jobs];
        *job = (sim_stream_job){.stream = sim->rules.job[i].stream,
                                .again = sim->rules.job[i].again,
                                .refuses = sim->rules.job[i].refuses,
                                .life_rows = sim->rules.job[i].rows};
        job->rows = rows_of(sim, job->stream);
        if (!job->rows)
            continue; /* nothing of the data can be used */
        if (job->rows->n_rows < UINT64_MAX)
            job->taken = must_have(calloc(job->rows->n_rows + 1, 1));
        begin_life(sim, sim->n_jobs++, sim->rules.job[i].ranks);
    }
}

/* The steps that all ranks have taken whole. */
static uint64_t common_steps(const simulation *sim, const sim_stream_job *job)
{
    uint64_t steps = UINT64_MAX;
    for (int i = job->first; i < job->first + job->ranks; i++)
        steps = sim->rank[i]->done_steps < steps ? sim->rank[i]->done_steps : steps;
    return steps;
}

/* Takes the cursor that some rank had after step `last` as that of the job's next life. */
static void take_cursor(simulation *sim, sim_stream_job *job, uint64_t last)
{
    const uint64_t batch = (uint64_t)sim->options.training_global_batch_size;
    const int from = job->first + (int)sim_random_below(&sim->people, (uint64_t)job->ranks);
    const sim_rank *rank = sim->rank[from];
    if (rank->steps[last % KEPT_CURSORS].step != last || !rank->steps[last % KEPT_CURSORS].cursor)
        return; /* too long ago: it starts where it started before */
    free(job->cursor);
    job->cursor = strdup(rank->steps[last % KEPT_CURSORS].cursor);
    job->begin = (last + 1) * batch;
    if (job->ranks == 1 && job->begin > job->rows->n_rows)
        job->begin = job->rows->n_rows; /* its last step is not whole */
}

static void end_rank(simulation *sim, sim_rank *rank)
{
    if (rank->link >= 0 && sim_random_chance(&sim->people, 1, 2))
        link_say(sim, rank->link, KIND_BYE, 0, "{}");
    if (rank->link >= 0)
        link_close(sim, rank->link);
    rank->link = -1;
    rank->state = RANK_GONE;
}

void job_restart(simulation *sim, int number)
{
    sim_stream_job *job = &sim->job[number];
    const int64_t batch = sim->options.training_global_batch_size;
    const uint64_t steps = common_steps(sim, job);
    if (steps > job->begin / (uint64_t)batch)
        take_cursor(sim, job, steps - 1);
    job_unite(sim, job);
    for (int i = job->first; i < job->first + job->ranks; i++)
        end_rank(sim, sim->rank[i]);
    const int ranks = (int)sim_random_between(&sim->people, 1, sim->rules.most_ranks);
    sim_log_tell(&sim->log, sim->now_ns, "job %d starts again at row %llu with %d ranks", number,
                 (unsigned long long)job->begin, ranks);
    begin_life(sim, number, ranks);
}

void job_start_over(simulation *sim, int number)
{
    sim_stream_job *job = &sim->job[number];
    const int ranks = job->ranks;
    job->again--;
    sim->stats->started_over++;
    job_unite(sim, job);
    free(job->cursor);
    job->cursor = NULL;
    job->begin = 0;
    for (int i = job->first; i < job->first + ranks; i++)
        end_rank(sim, sim->rank[i]);
    sim_log_tell(&sim->log, sim->now_ns, "job %d starts over", number);
    begin_life(sim, number, ranks);
}

bool jobs_are_done(const simulation *sim)
{
    for (int i = 0; i < sim->n_jobs; i++)
        if (sim->job[i].n_reading > 0)
            return false;
    return true;
}

void jobs_free(simulation *sim)
{
    for (int i = 0; i < sim->n_ranks; i++) {
        for (int k = 0; k < KEPT_CURSORS; k++)
            free(sim->rank[i]->steps[k].cursor);
        free(sim->rank[i]->cursor);
        bad_samples_done(&sim->rank[i]->heard);
        free(sim->rank[i]);
    }
    free(sim->rank);
    for (int i = 0; i < sim->n_jobs; i++) {
        free(sim->job[i].cursor);
        bad_samples_done(&sim->job[i].told);
        bad_samples_done(&sim->job[i].made_up);
        free(sim->job[i].taken);
    }
}
