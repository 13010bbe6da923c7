/* SPDX-License-Identifier: Apache-2.0 */
/* files_checks.c: how many bytes of files are under way to workers that have no copy of the
 * data. */
#include "tests/sim/prepd/daemon_world.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/work.h"

/* The bytes of files that came with a lease. */
static int64_t *files_of(sim_daemon *daemon, uint64_t lease_number)
{
    return &daemon->files_sent[lease_number % MOST_LEASES_KNOWN];
}

/* Parts at its end that are rows of others. */
static size_t lease_rows_parts(simulation *sim, const wire_msg *message)
{
    frame head;
    heard *text;
    if (heard_read(&sim->heard, message, &head, &text) != ST_OK) {
        sim_break(sim, INV_WIRE, "a lease cannot be read: %s", status_text());
        return 0;
    }
    const size_t parts = work_compared_parts(text->said);
    heard_drop(&text);
    return parts;
}

void check_files_under_way(simulation *sim, sim_daemon *daemon, uint64_t lease_number,
                           const wire_msg *message)
{
    int64_t under_way = 0, bytes = 0;
    const size_t end = wire_msg_parts(message) - lease_rows_parts(sim, message);
    for (size_t i = PARTS_BEFORE_FILES; i < end; i++)
        bytes += (int64_t)wire_msg_part(message, i).size;
    *files_of(daemon, lease_number) = bytes;
    for (const worker_seat *seat = daemon->state->seats; seat && bytes > 0; seat = seat->next) {
        const lease *const held[] = {seat->work, seat->ahead};
        for (int i = 0; i < 2; i++)
            if (seat->ship && held[i] && held[i]->number != lease_number)
                under_way += *files_of(daemon, held[i]->number);
    }
    if (under_way >= sim->options.prepd_ship_bytes)
        sim_break(sim, INV_MEMORY,
                  "%lld bytes of files are under way, more are sent, and prepd.ship_bytes is %lld",
                  (long long)under_way, (long long)sim->options.prepd_ship_bytes);
}
