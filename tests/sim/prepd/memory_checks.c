/* SPDX-License-Identifier: Apache-2.0 */
/* memory_checks.c: what the dispatcher keeps has bounds, and all of it is freed. */
#include "tests/sim/common/sim_memory.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"

enum { TOLD_SHARE = 8 }; /* as in known_lists.c */

void check_memory_is_back(simulation *sim, int64_t blocks_before)
{
    const int64_t lost = sim_memory_blocks() - blocks_before;
    if (lost != 0)
        sim_break(sim, INV_MEMORY, "%lld blocks of memory were not freed", (long long)lost);
}

/* A consumer is reserved more bytes only within its share of the buffer, or for one row. */
static void check_share(simulation *sim, const dispatch *state, const consumer_seat *consumer)
{
    sim_link *link = link_of_peer(sim, &consumer->peer);
    const int64_t share = state->options->prepd_buffer_bytes / state->n_consumers,
                  used = consumer->reserved + consumer->unreturned;
    if (used > link->used_bytes && used > share && consumer->n_slots > 0 &&
        (consumer->n_slots > 1 || consumer->unreturned > 0))
        sim_break(sim, INV_MEMORY,
                  "a consumer has %lld bytes in work and under way, and its share is %lld",
                  (long long)used, (long long)share);
    link->used_bytes = used;
    if (consumer->n_made > consumer->made_capacity || consumer->n_slots > SESSION_SLOTS)
        sim_break(sim, INV_MEMORY, "a consumer has %d rows in work", consumer->n_slots);
}

/* A list has each sample of its data set once at most. */
static void check_length(simulation *sim, const bad_samples *list, int64_t most)
{
    for (int64_t i = 0; i < list->n; i++)
        if (list->id[i] < 0 || list->id[i] >= most || (i > 0 && list->id[i - 1] >= list->id[i])) {
            sim_break(sim, INV_MEMORY, "a list of bad samples has %lld in the wrong place",
                      (long long)list->id[i]);
            return;
        }
}

static void check_told(simulation *sim, const dispatch *state)
{
    int64_t told = 0;
    int tellers = 0;
    for (const consumer_seat *consumer = state->consumer_seats; consumer;
         consumer = consumer->next) {
        told += consumer->cursor_bytes;
        tellers += consumer->cursor_bytes > 0;
    }
    for (const known_list *list = state->known; list; list = list->next) {
        int users = 0;
        told += list->bad.n * (int64_t)sizeof *list->bad.id;
        tellers++;
        check_length(sim, &list->bad, sim->data[list->src == &state->eval].n_samples);
        for (const consumer_seat *consumer = state->consumer_seats; consumer;
             consumer = consumer->next)
            users += consumer->known == list;
        if (users == 0 || users != list->users)
            sim_break(sim, INV_MEMORY, "%d consumers share a list that counts %d", users,
                      list->users);
    }
    if (tellers > 1 && told > sim->most_buffer / TOLD_SHARE)
        sim_break(sim, INV_MEMORY, "%d consumers have told %lld bytes that are kept", tellers,
                  (long long)told);
}

void check_memory(simulation *sim, sim_daemon *daemon)
{
    const dispatch *state = daemon->state;
    if (state->options->prepd_buffer_bytes > sim->most_buffer)
        sim->most_buffer = state->options->prepd_buffer_bytes;
    for (const consumer_seat *consumer = state->consumer_seats; consumer;
         consumer = consumer->next) {
        check_share(sim, state, consumer);
    }
    for (int i = 0; i < 2; i++) {
        const source *section = i ? &state->eval : &state->train;
        check_length(sim, &section->bad, sim->data[i].n_samples);
        check_length(sim, &section->damaged, sim->data[i].n_pictures);
        if (section->ready && section->build.before)
            sim_break(sim, INV_MEMORY, "what was kept to build an index of %s is still kept",
                      section->name);
    }
    check_told(sim, state);
    if (state->peer_limits.reading)
        sim_break(sim, INV_MEMORY, "the core keeps the address of a peer after its message");
}
