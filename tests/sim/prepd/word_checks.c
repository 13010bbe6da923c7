/* SPDX-License-Identifier: Apache-2.0 */
/* word_checks.c: what the core says to people: the status that an operator asks for, and what it
 * tells a worker that made another row than two others did. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/daemon_world.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/sim_twins.h"
#include "prepd/serve/core/workers/core_workers.h"

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

/* Whom it believes, and whom not. */
static bool is_true_of_trust(const dispatch *state, const json_value *said)
{
    int64_t deciders = 0, doubts = 0;
    size_t excluded = 0, watched = 0;
    for (const worker_seat *seat = state->seats; seat; seat = seat->next) {
        deciders += seat->decider && seat_can_work(seat);
        doubts += seat->work && seat->work->doubt;
    }
    for (const lease *lost = state->book.lost; lost; lost = lost->next)
        doubts += lost->doubt != NULL;
    for (int i = 0; i < state->accounts.used; i++) {
        excluded += state->accounts.of[i]->excluded.until_ns > state->now_ns;
        watched += state->accounts.of[i]->watched > 0;
    }
    return json_int(json_find(said, "deciders"), -1) == deciders &&
           json_int(json_find(said, "doubts_waiting"), -1) == doubts &&
           json_count(json_find(said, "excluded")) == excluded &&
           json_count(json_find(said, "watched")) == watched &&
           json_int(json_find(said, "rows_checked"), -1) == (int64_t)state->counts.checked &&
           json_int(json_find(said, "rows_unchecked"), -1) == (int64_t)state->counts.unchecked;
}

static void check_status(simulation *sim, const dispatch *state, const json_value *said)
{
    const int64_t replaced = json_int(json_find(said, "workers_replaced"), -1);
    if (!is_true_of_consumers(state, json_find(said, "consumers")) ||
        !is_true_of_workers(state, json_find(said, "workers")) || !is_true_of_trust(state, said) ||
        !is_true_of_section(&state->train, json_find(said, "train")) ||
        !is_true_of_section(&state->eval, json_find(said, "eval")) || replaced < 0 ||
        replaced > sim->n_workers ||
        json_int(json_find(said, "leases_waiting"), -1) != count_lost(state) ||
        json_int(json_find(said, "rows"), -1) != (int64_t)state->counts.rows ||
        json_int(json_find(said, "workers_target"), -1) != state->local.target ||
        json_bool(json_find(said, "draining"), false) != state->draining)
        sim_break(sim, INV_WORDS, "the status that an operator is told is not that of the daemon");
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
    if (kind == KIND_ERROR && twin_is_told(json_text(json_find(said, "message"), "")))
        check_twin_refusal(sim, daemon->state, link);
    json_free(&said);
}
