/* SPDX-License-Identifier: Apache-2.0 */
/* sim_consumers.c: a rank of a job: it greets with the cursor of the last row that it took, and
 * gives credit back for the rows that it has used. How it takes a row is in consumer_rows.c. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/jobs.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"
#include "tests/sim/prepd/real_receiver.h"
#include "tests/sim/prepd/sim_twins.h"

static const int64_t AGAIN_NS = 500000000;

void rank_go_on(simulation *sim, int number, int64_t after_ns)
{
    sim_queue_put(&sim->queue, (sim_event){.at_ns = sim->now_ns + after_ns,
                                           .kind = EVENT_RANK,
                                           .who = number,
                                           .word = ++sim->rank[number]->turn});
}

/* Says what nobody needs: more than the share of the buffer that HELLOs of several may take. */
enum { MOST_WORDY = 4, MANY_WORDS = 300000 };
static void put_many_words(json_writer *writer)
{
    char *words = malloc(MANY_WORDS);
    if (!words)
        abort();
    memset(words, 'w', MANY_WORDS);
    json_put_key_text(writer, "note", words, MANY_WORDS);
    free(words);
}

/* Now and then, as long as things go wrong, one that is not the rank's own. */
static cursor_kind choose_cursor(simulation *sim, const char *own)
{
    if (!own)
        return CURSOR_NONE;
    if (!sim->rules.other_cursors || sim->now_ns >= sim->calm_ns ||
        !sim_random_chance(&sim->people, 1, 3))
        return CURSOR_OWN;
    return sim_random_chance(&sim->people, 2, 3) ? CURSOR_OTHER_WEIGHTS : CURSOR_OTHER_DATA;
}

static void send_hello(simulation *sim, sim_rank *rank)
{
    const sim_stream_job *job = &sim->job[rank->job];
    const char *cursor = rank->cursor ? rank->cursor : job->cursor;
    const char *options = sim->stream_json[strcmp(job->stream, "eval") == 0];
    char *text, *other = NULL;
    rank->brings = choose_cursor(sim, cursor);
    if (rank->brings == CURSOR_OTHER_WEIGHTS || rank->brings == CURSOR_OTHER_DATA)
        cursor = other = other_cursor(cursor, &rank->brings);
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_int(&writer, "version", SESSION_VERSION);
    json_put_key_cstr(&writer, "stream", job->stream);
    json_put_key_int(&writer, "rank", rank->rank);
    json_put_key_int(&writer, "ranks", job->ranks);
    json_put_key_int(&writer, "credit_bytes", sim->rules.credit);
    json_put_key_bool(&writer, "prefixes", true);
    json_put_key_bool(&writer, "rows_later", sim_random_chance(&sim->people, 1, 3));
    if (cursor)
        json_put_key_cstr(&writer, "cursor", cursor);
    job_put_told(job, rank->rank % 3 == 1, &writer);
    twin_put_names(sim, rank, &writer);
    if (rank->rank % 2 == 0) /* others take the stream as it is */
        json_put_key_raw(&writer, "options", options, strlen(options));
    if (sim->rules.wordy && job->ranks <= MOST_WORDY)
        put_many_words(&writer);
    json_end_object(&writer);
    if (json_writer_take(&writer, &text, NULL) != ST_OK)
        abort();
    link_say(sim, rank->link, KIND_HELLO, 0, text);
    free(text);
    free(other);
    json_writer_done(&writer);
}

/* Where the rank must go on, by the cursor that it comes with. */
void rank_find_next(simulation *sim, sim_rank *rank, uint64_t from)
{
    const sim_stream_job *job = &sim->job[rank->job];
    rank->any_left = reference_next(job->rows, job->ranks, rank->rank, from, &rank->next);
}

/* The rank's own daemon; now and then another, by mistake, where that one serves other ranks. */
static int choose_daemon(simulation *sim, sim_rank *rank)
{
    rank->astray = sim->rules.split && strcmp(sim->job[rank->job].stream, "train") == 0 &&
                   sim->now_ns < sim->calm_ns && sim_random_chance(&sim->people, 1, 12);
    if (!rank->astray)
        return rank->daemon;
    const int others = sim->rules.n_daemons - 1;
    return (rank->daemon + 1 + (int)sim_random_below(&sim->people, (uint64_t)others)) %
           sim->rules.n_daemons;
}

static void greet(simulation *sim, int number)
{
    sim_rank *rank = sim->rank[number];
    const int daemon = choose_daemon(sim, rank);
    rank->link = link_open(sim, END_RANK, number, daemon, DOOR_CONSUMERS, MS);
    if (rank->link < 0) {
        rank_go_on(sim, number, AGAIN_NS);
        return;
    }
    rank->state = RANK_GREETING;
    rank->under_way = rank->n_held = 0;
    rank->hold_until_ns = 0;
    rank->asked_ns = sim->now_ns;
    send_hello(sim, rank);
}

/* Uses the rows that it holds, and gives their credit back. */
static void use_rows(simulation *sim, int number)
{
    sim_rank *rank = sim->rank[number];
    int64_t bytes = 0;
    for (int i = 0; i < rank->n_held; i++)
        bytes += rank->held[i];
    if (rank->n_held == 0 || rank->link < 0)
        return;
    rank->n_held = 0;
    link_give_back(sim, rank->link, bytes);
}

void rank_event(simulation *sim, const sim_event *event)
{
    sim_rank *rank = sim->rank[event->who];
    if (event->word != rank->turn || rank->state == RANK_GONE)
        return;
    if (rank->state == RANK_AWAY)
        greet(sim, event->who);
    else if (sim->now_ns < rank->hold_until_ns)
        rank_go_on(sim, event->who, rank->hold_until_ns - sim->now_ns);
    else
        use_rows(sim, event->who);
}

/* It has been told to wait, to go, or that something is wrong. It comes back later. */
static void go_away(simulation *sim, int number, int64_t after_ns)
{
    sim_rank *rank = sim->rank[number];
    if (rank->link >= 0)
        link_close(sim, rank->link);
    rank->link = -1;
    rank->refuses = false;
    rank->state = RANK_AWAY;
    rank_go_on(sim, number, after_ns + sim_random_tail(&sim->people, 1, 200 * MS));
}

static void take_welcome(simulation *sim, int number, const json_value *said)
{
    sim_rank *rank = sim->rank[number];
    if (rank->state != RANK_GREETING)
        sim_break(sim, INV_WIRE, "rank %d is welcomed twice", number);
    rank->state = RANK_READING;
    check_welcome(sim, number, said);
    if (sim->coder)
        real_rows_welcome(sim, number, said);
}

void rank_message(simulation *sim, int number, const wire_msg *message)
{
    sim_rank *rank = sim->rank[number];
    frame head;
    heard *text;
    if (frame_decode(wire_msg_part(message, 0), "core", &head) != ST_OK)
        return;
    if (rank->refuses && head.kind != KIND_ERROR)
        return; /* it waits for the word to come again */
    if (head.kind == KIND_ROW) {
        rank_take_row(sim, number, message, &head);
        return;
    }
    if (heard_read(&sim->heard, message, &head, &text) != ST_OK) {
        sim_break(sim, INV_WIRE, "rank %d cannot read what it was sent: %s", number, status_text());
        return;
    }
    if (head.kind == KIND_WELCOME) {
        take_welcome(sim, number, text->said);
    } else if (head.kind == KIND_END) {
        check_end_of_stream(sim, number, text->said);
        link_say(sim, rank->link, KIND_BYE, 0, "{}");
        link_close(sim, rank->link);
        rank->state = RANK_ENDED;
        check_union(sim, rank);
        rank->link = -1;
        if (sim->job[rank->job].n_reading == 0 && sim->job[rank->job].again > 0)
            job_start_over(sim, rank->job);
    } else if (head.kind == KIND_ERROR) {
        const status st = wire_error(text->said, "core");
        sim_log_tell(&sim->log, sim->now_ns, "rank %d is told: %s", number, status_text());
        check_consumer_refusal(sim, number, st);
        const char *later = strstr(status_text(), "try again in ");
        go_away(sim, number, later ? atoll(later + strlen("try again in ")) * SECOND : AGAIN_NS);
    }
    heard_drop(&text);
}

void rank_lost(simulation *sim, int number)
{
    const sim_rank *rank = sim->rank[number];
    if (rank->state == RANK_GREETING || rank->state == RANK_READING)
        go_away(sim, number, AGAIN_NS);
}

void rank_begin(simulation *sim, int number, uint64_t from)
{
    sim_rank *rank = sim->rank[number];
    rank_find_next(sim, rank, from);
    rank->state = RANK_AWAY;
    rank_go_on(sim, number, sim_random_tail(&sim->people, 1, 300 * MS));
}
