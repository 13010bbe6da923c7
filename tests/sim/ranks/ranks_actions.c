/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_actions.c: what the core of a simulated rank has answered is done here: to connections, to
 * its work, and to the process itself. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/ranks/ranks_world.h"

enum { OPTIONAL_MOST = 1 << 16 };

static const char *const message_name[] = {"?",   "HELLO", "WELCOME", "REFUSE", "BEAT", "LOST",
                                           "BYE", "WAITS", "SHAPE",   "SILENT", "NOTE"};

static void close_all(world *all, int rank)
{
    for (int i = 0; i < all->n_wires; i++)
        for (int end = 0; end < 2; end++)
            if (all->wire[i].end[end].rank == rank && all->wire[i].end[end].open)
                wires_close(all, i, end);
}

static void end_process(world *all, int rank, bool well, bool forced, const char *words)
{
    process *const at = &all->rank[rank];
    at->alive = false;
    at->ended = true;
    at->well = well;
    at->forced = forced;
    at->work = WORK_OVER;
    if (words != at->words)
        snprintf(at->words, sizeof at->words, "%s", words);
    sim_log_note(&all->log, all->now_ns, 100, rank, well);
    sim_log_tell(&all->log, all->now_ns, "rank %d ends %s%s%s", rank,
                 well ? "well" : "badly: ", forced ? "(forced) " : "", words);
    verdict_process(all, rank);
    close_all(all, rank);
}

void process_kill(world *all, int rank, bool power)
{
    process *const at = &all->rank[rank];
    if (!at->alive)
        return;
    at->alive = false;
    at->lost_power = power;
    at->work = WORK_OVER;
    sim_log_tell(&all->log, all->now_ns, "rank %d %s", rank, power ? "loses power" : "is killed");
    if (!power)
        close_all(all, rank);
}

static int end_at(const world *all, int rank, int conn)
{
    const tcp_wire *at = &all->wire[all->rank[rank].wire_of[conn]];
    return rank == 0 && at->end[1].conn == conn ? 1 : 0;
}

static void send_message(world *all, int rank, const link_action *action)
{
    uint8_t bytes[CONTROL_HEADER + CONTROL_HELLO_MAX];
    char place[128];
    const int wire = all->rank[rank].wire_of[action->conn], end = end_at(all, rank, action->conn);
    const void *payload = action->bytes;
    size_t size = action->size;
    if (action->kind == LINK_SEND_AT) {
        if (wires_unsent(all, wire, end) > OPTIONAL_MOST)
            return;
        size = (size_t)snprintf(place, sizeof place, "step %d", all->rank[rank].step);
        payload = place;
    }
    rank_link_header_put(bytes, action->message, size);
    if (size > 0)
        memcpy(bytes + CONTROL_HEADER, payload, size);
    sim_log_add(&all->log, bytes, CONTROL_HEADER + size);
    if (action->message == CONTROL_LOST || action->message == CONTROL_SILENT ||
        action->message == CONTROL_REFUSE)
        sim_log_tell(&all->log, all->now_ns, "rank %d sends %s: %.*s", rank,
                     message_name[action->message], (int)size, (const char *)payload);
    else if (action->kind != LINK_SEND_AT)
        sim_log_tell(&all->log, all->now_ns, "rank %d sends %s", rank,
                     message_name[action->message]);
    wires_send(all, wire, end, bytes, CONTROL_HEADER + size);
}

static void close_conn(world *all, int rank, int conn)
{
    const int wire = all->rank[rank].wire_of[conn], end = end_at(all, rank, conn);
    all->rank[rank].wire_of[conn] = -1;
    wires_close(all, wire, end);
}

static void job_ends(world *all, int rank, const link_action *action)
{
    process *const at = &all->rank[rank];
    snprintf(at->lost, sizeof at->lost, "%s", action->text);
    at->lost_at = all->now_ns;
    sim_log_tell(&all->log, all->now_ns, "rank %d: the run ends: %s", rank, action->text);
    /* its calls look whether the job is over */
    world_put(all, all->now_ns + sim_random_between(&all->works, 0, 50 * MS), SIM_WORK, rank, 0);
}

static void take_note(world *all, const link_action *note)
{
    process *const from = &all->rank[note->rank];
    char *after;
    from->told_step = (int)strtol(note->text, &after, 10);
    from->told = (save_mark)strtol(after, &after, 10);
    snprintf(from->told_text, sizeof from->told_text, "%s", after);
    sim_log_tell(&all->log, all->now_ns, "rank 0 hears of rank %d: %s", note->rank, note->text);
}

void process_do(world *all, int rank, const link_action *action)
{
    process *const at = &all->rank[rank];
    sim_log_note(&all->log, all->now_ns, (int)action->kind, rank, (uint64_t)action->conn);
    switch (action->kind) {
    case LINK_CONNECT:
        at->reach_until = action->until_ns;
        world_put(all, all->now_ns, SIM_REACH, rank, 0);
        break;
    case LINK_SEND:
    case LINK_SEND_AT:
        send_message(all, rank, action);
        break;
    case LINK_FINISH:
        wires_finish(all, at->wire_of[action->conn], end_at(all, rank, action->conn));
        break;
    case LINK_CLOSE:
        close_conn(all, rank, action->conn);
        break;
    case LINK_WARN:
        sim_log_tell(&all->log, all->now_ns, "rank %d warns: %s", rank, action->text);
        break;
    case LINK_NOTE:
        take_note(all, action);
        break;
    case LINK_AGREED:
        work_agreed(all, rank, action->bytes);
        break;
    case LINK_JOINED:
        at->joined = true;
        sim_log_tell(&all->log, all->now_ns, "rank %d has joined", rank);
        if (memcmp(action->bytes, "0123456789abcdef", 16) != 0)
            world_broken(all, "rank %d was given another id than rank 0's", rank);
        for (int i = 0; i < all->size; i++)
            if (faults_find(all, FAULT_OPTIONS, i))
                world_broken(all, "ranks %d and %d have joined with different options", rank, i);
        work_begin(all, rank);
        break;
    case LINK_FAILED:
        end_process(all, rank, false, false, action->text);
        break;
    case LINK_ENDS:
        job_ends(all, rank, action);
        break;
    case LINK_EXIT:
        end_process(all, rank, false, true, at->lost);
        break;
    case LINK_LEFT:
        end_process(all, rank, at->words[0] == 0 && at->lost[0] == 0, false,
                    at->lost[0] ? at->lost : at->words);
    }
}
