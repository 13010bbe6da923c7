/* SPDX-License-Identifier: Apache-2.0 */
/* consumer_rows.c: how a rank takes a row: it has it judged, keeps its cursor, and goes on with the
 * next one; or refuses it. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/jobs.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/real_receiver.h"

static void keep_text(char **to, const char *text, size_t size)
{
    free(*to);
    *to = strndup(text, size);
    if (!*to)
        abort();
}

/* Remembers the cursor after the last row of a step, from which a job of any size can go on. */
static void keep_step(simulation *sim, int number, uint64_t row)
{
    sim_rank *rank = sim->rank[number];
    const uint64_t batch = (uint64_t)sim->options.training_global_batch_size;
    const bool ends = !rank->any_left || rank->next / batch > row / batch;
    if (!ends)
        return;
    const uint64_t step = row / batch;
    keep_text(&rank->steps[step % KEPT_CURSORS].cursor, rank->cursor, strlen(rank->cursor));
    rank->steps[step % KEPT_CURSORS].step = step;
    rank->done_steps = step + 1;
    check_step_cursor(sim, number, step);
}

/* The row is not what its tag says: its worker is to be dismissed, and it is made again. */
static void refuse_row(simulation *sim, int number, uint64_t row, const char *why)
{
    sim_rank *rank = sim->rank[number];
    char *text;
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "row", (int64_t)row);
    json_put_key_cstr(&writer, "message", why);
    json_end_object(&writer);
    if (json_writer_take(&writer, &text, NULL) != ST_OK)
        abort();
    link_say(sim, rank->link, KIND_REFUSE, 0, text);
    free(text);
    json_writer_done(&writer);
    rank->refuses = true;
    sim->stats->rows_refused++;
}

/* Counts how often a row of the stream was taken by any rank. */
static void note_taken(simulation *sim, const sim_rank *rank, uint64_t row)
{
    sim_stream_job *job = &sim->job[rank->job];
    if (!job->taken || row >= job->rows->n_rows)
        return;
    if (++job->taken[row] > 1)
        sim_break(sim, INV_ORDER, "row %llu is taken twice", (unsigned long long)row);
}

/* Reads a row. *why: why the receiver refuses it, or NULL. False for a message that no worker has
 * made. */
static bool read_row(simulation *sim, int number, const wire_msg *message, const frame *head,
                     sim_row *out, const char **why)
{
    if (sim->coder)
        return real_row_read(sim, number, message, head, out, why);
    if (!sim_row_read(message, head, out)) {
        sim_break(sim, INV_WIRE, "rank %d gets a row that no worker has made", number);
        return false;
    }
    *why = !sim_row_fits_tag(out) ? "it has other samples"
           : out->kills           ? "decoding it ends the process"
           : !out->is_whole       ? "its content is not that of its digest"
                                  : NULL;
    return true;
}

/* Now and then a rank keeps what it has for long, as one that saves a checkpoint does. Later than
 * an hour none does, since all rows are to come within two. */
static void hold_back(simulation *sim, sim_rank *rank)
{
    const int every = sim->rules.hold_every;
    if (every == 0 || sim->now_ns > 3600 * SECOND ||
        !sim_random_chance(&sim->people, 1, (uint64_t)every))
        return;
    rank->hold_until_ns = sim->now_ns + sim_random_between(&sim->people, 20 * SECOND, 90 * SECOND);
    sim->stats->held_back++;
}

void rank_take_row(simulation *sim, int number, const wire_msg *message, const frame *head)
{
    sim_rank *rank = sim->rank[number];
    static sim_row row;
    const char *why;
    if (!read_row(sim, number, message, head, &row, &why))
        return;
    if (why) {
        note_refused(sim, rank, head->row, row.tag);
        refuse_row(sim, number, head->row, why);
        check_tag(sim, number, head->row, &row);
        sim_row_done(&row);
        return;
    }
    if (sim->job[rank->job].refuses && sim->now_ns < sim->calm_ns &&
        sim_random_chance(&sim->people, 1, 4)) {
        refuse_row(sim, number, head->row, "it is not to my liking");
        sim_row_done(&row);
        return;
    }
    check_row(sim, number, head->row, &row);
    check_found_out(sim, rank, head->row);
    if (row.n_docs > 0) /* an empty row of the sample stream lists what the index refuses */
        rank_hear(sim, number, head->row, json_text(json_find(row.tag, "quarantine"), ""));
    note_taken(sim, rank, head->row);
    sim->stats->rows++;
    rank->rows++;
    const json_value *cursor = json_find(row.tag, "cursor");
    keep_text(&rank->cursor, json_text(cursor, ""), json_text_size(cursor));
    sim_row_done(&row);
    rank_find_next(sim, rank, head->row + 1);
    keep_step(sim, number, head->row);
    if (rank->n_held < HELD_ROWS)
        rank->held[rank->n_held++] = (int64_t)wire_msg_bytes(message);
    else
        rank->held[0] += (int64_t)wire_msg_bytes(message);
    if (sim->job[rank->job].again > 0 && (int64_t)rank->rows >= sim->job[rank->job].life_rows) {
        job_start_over(sim, rank->job);
        return;
    }
    hold_back(sim, rank);
    rank_go_on(sim, number, sim_random_tail(&sim->people, 1, sim->rules.step_ns));
}
