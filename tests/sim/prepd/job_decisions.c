/* job_decisions.c: what the ranks of a job hear of bad samples. When a job starts again, its ranks
 * bring what all of them had heard, as a trainer's do from its checkpoint; some bring a good sample
 * as well, which no daemon would find: it must be blank in their rows and in nobody else's. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/jobs.h"

static const char BY_HAND[] = "by hand";

static void must(status st)
{
    if (st != ST_OK)
        abort();
}

void rank_hear(simulation *sim, int number, uint64_t row, const char *list)
{
    if (decisions_read(&sim->rank[number]->heard, list, (int64_t)row, "row") != ST_OK)
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
    char list[80];
    snprintf(list, sizeof list, "[{\"id\":%lld,\"cause\":\"%s\",\"row\":0}]", (long long)id,
             BY_HAND);
    must(decisions_read(&job->told, list, DECISION_ROW_UNKNOWN, "list"));
}

/* Adds all other samples that show the same picture as this one. */
static void add_companions(sim_stream_job *job, const sim_data *data, int64_t id)
{
    const sim_sample *own = &data->sample[id];
    for (int64_t i = 0; own->n_shown > 0 && i < data->n_samples; i++)
        if (i != id && data->sample[i].n_shown > 0 && data->sample[i].shows[0] == own->shows[0])
            add_by_hand(job, i);
}

/* Adds a sample that most likely has nothing wrong with it, or another cause for one that is known,
 * which then stands; or all questions on a picture but one. */
static void make_up(simulation *sim, sim_stream_job *job)
{
    if (!sim->rules.lists_by_hand && !sim_random_chance(&sim->people, 1, 3))
        return;
    if (job->told.n_entries > 0 && sim_random_chance(&sim->people, 1, 2)) {
        const uint64_t most = (uint64_t)job->told.n_entries;
        add_by_hand(job, job->told.entry[sim_random_below(&sim->people, most)].sample);
        return;
    }
    const int64_t drawn = choose_sample(sim, job->rows->data);
    if (sim_random_chance(&sim->people, 1, 3))
        add_companions(job, job->rows->data, drawn);
    else
        add_by_hand(job, drawn);
}

void job_unite(simulation *sim, sim_stream_job *job)
{
    for (int i = job->first; i < job->first + job->ranks; i++) {
        const sim_rank *rank = sim->rank[i];
        char *list;
        must(decisions_write(&rank->heard, &list));
        must(decisions_read(&job->told, list, DECISION_ROW_UNKNOWN, "list"));
        free(list);
        must(decisions_read_cursor(&job->told, rank->cursor ? rank->cursor : "", "cursor"));
    }
    make_up(sim, job);
}

void job_put_told(const sim_stream_job *job, json_writer *writer)
{
    char *list;
    if (job->told.n_entries == 0)
        return;
    must(decisions_write(&job->told, &list));
    json_put_key_raw(writer, "quarantine", list, strlen(list));
    free(list);
}

bool job_was_told(const sim_stream_job *job, int64_t id)
{
    for (int64_t i = 0; i < job->told.n_entries; i++)
        if (job->told.entry[i].sample == id)
            return true;
    return false;
}

bool job_made_up(const sim_stream_job *job, int64_t id, const char *cause)
{
    return strcmp(cause, BY_HAND) == 0 && job_was_told(job, id);
}

void check_brought(simulation *sim, int number, uint64_t row, const char *cursor)
{
    const sim_stream_job *job = &sim->job[sim->rank[number]->job];
    decisions list = {0};
    int64_t at = 0;
    if (job->told.n_entries == 0)
        return;
    if (decisions_read_cursor(&list, cursor, "cursor") != ST_OK)
        sim_break(sim, INV_WIRE, "the cursor after row %llu cannot be read: %s",
                  (unsigned long long)row, status_text());
    for (int64_t i = 0; i < job->told.n_entries && !sim->broken[0]; i++) {
        const decision *told = &job->told.entry[i];
        while (at < list.n_entries && list.entry[at].sample < told->sample)
            at++;
        if (at == list.n_entries || list.entry[at].sample != told->sample ||
            strcmp(list.entry[at].cause, told->cause) != 0)
            sim_break(
                sim, INV_CURSORS,
                "rank %d has said that sample %lld is bad (%s), and the cursor after row %llu "
                "does not",
                number, (long long)told->sample, told->cause, (unsigned long long)row);
    }
    decisions_done(&list);
}
