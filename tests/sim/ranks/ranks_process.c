/* ranks_process.c: the shell of a simulated rank: gives its core what happens, and does what it
 * answers. It stands for trainer/parallel/rank_link.c. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/ranks/ranks_world.h"

enum { OPTIONAL_MOST = 1 << 16, PPM = 1000000 };

static const char *const message_name[] = {"?",   "HELLO", "WELCOME", "REFUSE", "BEAT", "LOST",
                                           "BYE", "WAITS", "SHAPE",   "SILENT", "NOTE"};

bool process_runs(const world *all, int rank)
{
    return all->rank[rank].alive && !all->rank[rank].stopped;
}

/* ---- clocks ---- */

static int64_t local_time(const world *all, int rank)
{
    const process *at = &all->rank[rank];
    return at->clock_from + all->now_ns + all->now_ns / PPM * at->clock_ppm;
}

/* The first virtual time at which the local clock shows at least this. */
static int64_t virtual_time(const world *all, int rank, int64_t local)
{
    const process *at = &all->rank[rank];
    const int64_t left = local - local_time(all, rank);
    if (left <= 0)
        return all->now_ns;
    return all->now_ns + left + left / PPM * 400 - left / PPM * at->clock_ppm + 1000;
}

static link_now now_of(const world *all, int rank)
{
    const process *at = &all->rank[rank];
    return (link_now){.ns = local_time(all, rank),
                      .waits = at->waits,
                      .began = at->joined && at->step > 0,
                      .call_ns = all->call_ns};
}

/* ---- the end of a process ---- */

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

/* ---- what the core answers ---- */

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

static void do_action(world *all, int rank, const link_action *action)
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

/* After an event: does what the core answered and asks when it wants to hear the time. */
static void after_event(world *all, int rank)
{
    process *const at = &all->rank[rank];
    link_action action;
    all->events++;
    while (at->alive && link_core_next(at->core, &action))
        do_action(all, rank, &action);
    if (!at->alive)
        return;
    at->time_wish++;
    const int64_t due = link_core_due(at->core);
    if (due < INT64_MAX)
        world_put(all, virtual_time(all, rank, due), SIM_TIME, rank, at->time_wish);
}

/* ---- events ---- */

void process_start(world *all, int rank)
{
    process *const at = &all->rank[rank];
    uint8_t id[CONTROL_ID_BYTES] = {0};
    char host[32];
    if (rank == 0)
        memcpy(id, "0123456789abcdef", 16);
    snprintf(host, sizeof host, "node%d", all->one_machine ? 0 : rank);
    const bool other = faults_find(all, FAULT_OPTIONS, rank) != NULL;
    const link_terms terms = {.me = {(uint32_t)rank, (uint32_t)all->size, (uint32_t)(1000 + rank),
                                     host, "trainer",
                                     other ? "a.x: 1\nb.y: 3\n" : "a.x: 1\nb.y: 2\n"},
                              .at_host = "node0",
                              .at_port = 29500,
                              .timeout_s = all->timeout_s,
                              .silence_s = all->silence_s,
                              .one_machine = all->one_machine,
                              .id = id};
    at->alive = true;
    at->work = WORK_JOINS;
    for (size_t i = 0; i < sizeof at->wire_of / sizeof *at->wire_of; i++)
        at->wire_of[i] = -1;
    sim_log_tell(&all->log, all->now_ns, "rank %d starts", rank);
    if (link_core_new(&terms, now_of(all, rank), &at->core) != ST_OK)
        abort();
    link_core_time(at->core, now_of(all, rank));
    after_event(all, rank);
}

void process_time(world *all, int rank, uint64_t wish)
{
    process *const at = &all->rank[rank];
    if (!process_runs(all, rank) || wish != at->time_wish)
        return;
    sim_log_note(&all->log, all->now_ns, SIM_TIME, rank, 0);
    link_core_time(at->core, now_of(all, rank));
    after_event(all, rank);
}

static int free_conn(const process *at)
{
    const int count = link_core_connections(at->core);
    for (int i = 0; i < count; i++)
        if (at->wire_of[i] < 0)
            return i;
    return -1;
}

void process_reach(world *all, int rank)
{
    process *const at = &all->rank[rank];
    at->missed_reach = at->stopped;
    if (!process_runs(all, rank))
        return;
    const bool silent = at->cut || all->rank[0].cut || all->rank[0].lost_power;
    if (silent && local_time(all, rank) < at->reach_until) { /* it tries again by itself */
        world_put(all, all->now_ns + SECOND, SIM_REACH, rank, 0);
        return;
    }
    const int wire = silent ? -1 : wires_connect(all, rank);
    if (wire < 0) {
        link_core_not_connected(at->core, now_of(all, rank),
                                silent ? "Connection timed out" : "Connection refused");
        after_event(all, rank);
        return;
    }
    const int conn = free_conn(at);
    at->wire_of[conn] = wire;
    all->wire[wire].end[0].conn = conn;
    link_core_connected(at->core, now_of(all, rank), conn);
    after_event(all, rank);
}

void process_accept(world *all)
{
    process *const at = &all->rank[0];
    for (int i = 0; i < all->n_wires && process_runs(all, 0); i++) {
        wire_end *const end = &all->wire[i].end[1];
        const int conn = end->open && end->conn < 0 ? free_conn(at) : -1;
        if (conn < 0)
            continue;
        end->conn = conn;
        at->wire_of[conn] = i;
        sim_log_note(&all->log, all->now_ns, 101, 0, (uint64_t)conn);
        link_core_connected(at->core, now_of(all, 0), conn);
        after_event(all, 0);
        wires_deliver(all, i, 1);
    }
}

void process_bytes(world *all, int rank, int conn, const void *bytes, size_t size)
{
    process *const at = &all->rank[rank];
    sim_log_note(&all->log, all->now_ns, SIM_ARRIVE, rank, (uint64_t)conn);
    link_core_bytes(at->core, now_of(all, rank), conn, bytes, size);
    after_event(all, rank);
}

void process_gone(world *all, int rank, int conn, bool reset)
{
    process *const at = &all->rank[rank];
    sim_log_note(&all->log, all->now_ns, 102, rank, (uint64_t)conn);
    link_core_gone(at->core, now_of(all, rank), conn, reset ? "Connection reset by peer" : NULL);
    after_event(all, rank);
    if (process_runs(all, rank) && at->wire_of[conn] >= 0)
        world_broken(all, "rank %d keeps connection %d, which is gone", rank, conn);
}

void process_need(world *all, int rank, const uint8_t need[LINK_NEEDS])
{
    link_core_need(all->rank[rank].core, now_of(all, rank), need);
    after_event(all, rank);
}

void process_tell(world *all, int rank, save_mark mark, const char *text)
{
    char note[160];
    snprintf(note, sizeof note, "%d %d %s", all->rank[rank].saving.step, (int)mark, text);
    link_core_tell(all->rank[rank].core, now_of(all, rank), note);
    after_event(all, rank);
}

void process_leave(world *all, int rank, const char *failed)
{
    process *const at = &all->rank[rank];
    at->work = WORK_LEAVES;
    at->left_well = failed == NULL;
    at->waits = false;
    if (failed)
        snprintf(at->words, sizeof at->words, "rank %d failed: %s", rank, failed);
    sim_log_note(&all->log, all->now_ns, 103, rank, failed != NULL);
    sim_log_tell(&all->log, all->now_ns, "rank %d leaves%s%s", rank, failed ? ": " : "",
                 failed ? failed : "");
    link_core_leave(at->core, now_of(all, rank), failed);
    after_event(all, rank);
}

void process_continue(world *all, int rank)
{
    process *const at = &all->rank[rank];
    if (!at->alive || !at->stopped)
        return;
    at->stopped = false;
    at->still_ns = all->now_ns - at->stopped_at;
    sim_log_tell(&all->log, all->now_ns, "rank %d goes on", rank);
    wires_deliver_all(all);
    if (process_runs(all, rank)) {
        link_core_time(at->core, now_of(all, rank));
        after_event(all, rank);
    }
    if (at->missed_reach)
        process_reach(all, rank);
    if (process_runs(all, rank) && at->saving.missed) {
        at->saving.missed = false;
        saves_go_on(all, rank, at->saving.wish);
        work_saved(all, rank);
    }
    if (process_runs(all, rank) && at->missed_work) {
        at->missed_work = false;
        work_go_on(all, rank, at->work_wish);
    }
}

void process_free(world *all, int rank)
{
    link_core_free(&all->rank[rank].core);
}
