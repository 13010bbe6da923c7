/* SPDX-License-Identifier: Apache-2.0 */
/* job_lists.c: what the ranks of a job know of bad samples. When a job starts again, its ranks
 * bring what the rows of all of them listed, as a trainer's do from its checkpoint; some bring a
 * good sample as well, which no daemon would find: it must be blank in their rows and in nobody
 * else's. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/jobs.h"

static void must(status st)
{
    if (st != ST_OK)
        abort();
}

void rank_hear(simulation *sim, int number, uint64_t row, const char *list)
{
    if (bad_samples_read_text(&sim->rank[number]->heard, list, "row") != ST_OK)
        sim_break(sim, INV_WIRE, "the bad samples of row %llu cannot be read: %s",
                  (unsigned long long)row, status_text());
}

/* Any sample; more often than others one of those that show a bad picture, of which others may show
 * the same. */
static int64_t choose_sample(simulation *sim, const sim_data *data)
{
    int64_t drawn = 0;
    for (int i = 0; i < 4; i++) {
        drawn = (int64_t)sim_random_below(&sim->people, (uint64_t)data->n_samples);
        if (sim_data_is_bad(data, drawn, INT64_MAX))
            break;
    }
    return drawn;
}

static void add_by_hand(sim_stream_job *job, int64_t id)
{
    must(bad_samples_add(&job->told, id, NULL, NULL));
    must(bad_samples_add(&job->made_up, id, NULL, NULL));
}

/* Adds all other samples that show the same picture as this one. */
static void add_companions(sim_stream_job *job, const sim_data *data, int64_t id)
{
    const sim_sample *own = &data->sample[id];
    for (int64_t i = 0; own->n_shown > 0 && i < data->n_samples; i++)
        if (i != id && data->sample[i].n_shown > 0 && data->sample[i].shows[0] == own->shows[0])
            add_by_hand(job, i);
}

/* Adds a sample that most likely has nothing wrong with it,
 * or all questions on a picture but one. */
static void make_up(simulation *sim, sim_stream_job *job)
{
    if (!sim->rules.lists_by_hand && !sim_random_chance(&sim->people, 1, 3))
        return;
    const int64_t drawn = choose_sample(sim, job->rows->data);
    if (sim_random_chance(&sim->people, 1, 3))
        add_companions(job, job->rows->data, drawn);
    else
        add_by_hand(job, drawn);
}

void job_unite(simulation *sim, sim_stream_job *job)
{
    for (int i = job->first; i < job->first + job->ranks; i++)
        must(bad_samples_merge(&job->told, &sim->rank[i]->heard));
    hash_print(index_digest(job->rows->index), job->told.index);
    make_up(sim, job);
}

void job_put_told(const sim_stream_job *job, bool earlier, json_writer *writer)
{
    char *list;
    if (job->told.n == 0)
        return;
    if (!earlier) {
        must(bad_samples_write(&job->told, &list));
        json_put_key_raw(writer, "quarantine", list, strlen(list));
        free(list);
        return;
    }
    json_begin_key_array(writer, "quarantine");
    for (int64_t i = 0; i < job->told.n; i++) {
        json_begin_object(writer);
        json_put_key_int(writer, "id", job->told.id[i]);
        json_put_key_cstr(writer, "cause", "of an earlier program");
        json_end_object(writer);
    }
    json_end_array(writer);
}

bool job_was_told(const sim_stream_job *job, int64_t id)
{
    return bad_samples_find(&job->told, id) != NULL;
}

bool job_made_up(const sim_stream_job *job, int64_t id)
{
    return bad_samples_find(&job->made_up, id) != NULL;
}

void check_step_cursor(simulation *sim, int who, uint64_t step)
{
    const sim_rank *own = sim->rank[who];
    const sim_stream_job *job = &sim->job[own->job];
    const char *cursor = own->steps[step % KEPT_CURSORS].cursor;
    if (strstr(cursor, "quarantine"))
        sim_break(sim, INV_CURSORS, "a cursor of rank %d has a list: %s", who, cursor);
    for (int i = job->first; i < job->first + job->ranks; i++) {
        const char *other = sim->rank[i]->steps[step % KEPT_CURSORS].cursor;
        if (other && sim->rank[i]->steps[step % KEPT_CURSORS].step == step &&
            strcmp(cursor, other) != 0)
            sim_break(sim, INV_CURSORS, "after step %llu rank %d has the cursor %s, and rank %d %s",
                      (unsigned long long)step, who, cursor, i, other);
    }
}
