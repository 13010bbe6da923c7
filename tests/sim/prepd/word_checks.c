/* word_checks.c: what the core says to people: the status that an operator asks for, and what it
 * tells a worker that made another row than two others did. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/daemon_world.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/sim_twins.h"

static int64_t count_lost(const dispatch *state)
{
    int64_t count = 0;
    for (const lease *lost = state->book.lost; lost; lost = lost->next)
        count++;
    return count;
}

static bool is_true_of_consumers(const dispatch *state, const json_value *list)
{
    size_t at = 0;
    for (const consumer_seat *seat = state->consumer_seats; seat; seat = seat->next, at++) {
        const json_value *said = json_item(list, at);
        if (json_int(json_find(said, "rank"), -1) != seat->rank ||
            json_int(json_find(said, "in_work"), -1) != seat->n_slots ||
            json_int(json_find(said, "credit_bytes"), -1) != seat->credit)
            return false;
    }
    return json_count(list) == at;
}

static bool is_true_of_workers(const dispatch *state, const json_value *list)
{
    size_t at = 0;
    for (const worker_seat *seat = state->seats; seat; seat = seat->next, at++) {
        const json_value *said = json_item(list, at);
        if (json_int(json_find(said, "pid"), -1) != seat->pid ||
            json_bool(json_find(said, "busy"), false) != (seat->work != NULL))
            return false;
    }
    return json_count(list) == at;
}

static bool is_true_of_section(const source *section, const json_value *said)
{
    return strcmp(json_text(json_find(said, "state"), "not opened"), "ready") == 0
               ? section->ready &&
                     json_int(json_find(said, "quarantined_count"), -1) == section->bad.n
               : json_find(said, "state") && !section->ready;
}

static void check_status(simulation *sim, const dispatch *state, const json_value *said)
{
    const int64_t replaced = json_int(json_find(said, "workers_replaced"), -1);
    if (!is_true_of_consumers(state, json_find(said, "consumers")) ||
        !is_true_of_workers(state, json_find(said, "workers")) ||
        !is_true_of_section(&state->train, json_find(said, "train")) ||
        !is_true_of_section(&state->eval, json_find(said, "eval")) || replaced < 0 ||
        replaced > sim->n_workers ||
        json_int(json_find(said, "leases_waiting"), -1) != count_lost(state) ||
        json_int(json_find(said, "rows"), -1) != (int64_t)state->counts.rows ||
        json_int(json_find(said, "workers_target"), -1) != state->local.target ||
        json_bool(json_find(said, "draining"), false) != state->draining)
        sim_break(sim, INV_WORDS, "the status that an operator is told is not that of the daemon");
}

/* Whether a row of this worker was sent that nobody compared. */
static bool was_sent(const dispatch *state, const worker_seat *seat, const char *stream,
                     uint64_t row)
{
    for (const consumer_seat *consumer = state->consumer_seats; consumer; consumer = consumer->next)
        for (int64_t i = 0; strcmp(consumer->stream, stream) == 0 && i < consumer->n_made; i++)
            if (consumer->made[i].row == row && consumer->made[i].by == seat->number &&
                !consumer->made[i].audited)
                return true;
    return false;
}

static int64_t count_sent(const dispatch *state, const worker_seat *seat)
{
    int64_t count = 0;
    for (const consumer_seat *consumer = state->consumer_seats; consumer; consumer = consumer->next)
        for (int64_t i = 0; i < consumer->n_made; i++)
            count += consumer->made[i].by == seat->number && !consumer->made[i].audited;
    return count;
}

/* Checks "train 5, eval 7 and 2 more", or "none". */
static void check_doubted(simulation *sim, const dispatch *state, const worker_seat *seat,
                          const char *list)
{
    char stream[8];
    unsigned long long row;
    int64_t listed = 0, more = 0;
    int used;
    bool same = true;
    while (sscanf(list, "%7[a-z] %llu%n", stream, &row, &used) == 2) {
        same &= was_sent(state, seat, stream, row);
        listed++;
        list += used;
        if (strncmp(list, ", ", 2) == 0)
            list += 2;
    }
    if (sscanf(list, " and %llu more", &row) == 1)
        more = (int64_t)row;
    if (!same || listed + more != count_sent(state, seat))
        sim_break(sim, INV_DEVIANT, "the rows that pid %d has made are not those that are listed",
                  (int)seat->pid);
}

static void check_dismissal(simulation *sim, const dispatch *state, const sim_link *link,
                            const json_value *said)
{
    static const char key[] = "nobody compared: ";
    const char *list = strstr(json_text(json_find(said, "message"), ""), key);
    const worker_seat *seat = state->seats;
    while (seat && seat->peer.connection != link->peer.connection)
        seat = seat->next;
    if (list && seat)
        check_doubted(sim, state, seat, list + strlen(key));
}

void check_words(simulation *sim, const sim_daemon *daemon, const wire_peer *to,
                 const wire_msg *message, const frame *head)
{
    const frame_kind kind = head->kind;
    const sim_link *link = link_of_peer(sim, to);
    const span text = wire_msg_part(message, 1);
    json_value *said;
    if ((kind != KIND_ANSWER && kind != KIND_ERROR) || !link)
        return;
    if (json_parse((const char *)text.data, text.size, "core", &said) != ST_OK) {
        sim_break(sim, INV_WORDS, "the core says what nobody can read: %s", status_text());
        return;
    }
    if (kind == KIND_ANSWER && json_find(said, "leases_waiting"))
        check_status(sim, daemon->state, said);
    if (kind == KIND_ERROR && head->row != 0)
        sim_break(sim, INV_WORDS, "an error that is about no row names row %" PRIu64, head->row);
    if (kind == KIND_ERROR && link->kind == END_WORKER)
        check_dismissal(sim, daemon->state, link, said);
    if (kind == KIND_ERROR && twin_is_told(json_text(json_find(said, "message"), "")))
        check_twin_refusal(sim, daemon->state, link);
    json_free(&said);
}
