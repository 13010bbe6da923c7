/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_world.c: fills the table of outside.h. */
#include "tests/sim/prepd/daemon_world.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"

const char sim_build[] = "b0000000000000000000000000000000";
const char *const sim_prints[N_PRINTS] = {[PRINT_IMAGES] = "11111111111111111111111111111111",
                                          [PRINT_VIDEOS] = "33333333333333333333333333333333",
                                          [PRINT_TOKENS] = "22222222222222222222222222222222",
                                          [PRINT_JPEG] = "44444444444444444444444444444444",
                                          [PRINT_PNG] = "55555555555555555555555555555555",
                                          [PRINT_WEBP] = "66666666666666666666666666666666",
                                          [PRINT_RESIZING] = "77777777777777777777777777777777",
                                          [PRINT_FRAMES] = "88888888888888888888888888888888",
                                          [PRINT_TEXTS] = "99999999999999999999999999999999",
                                          [PRINT_PACKING] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                          [PRINT_CLIPS] = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"};

int daemon_which(const sim_daemon *daemon, const source *section)
{
    return section == &daemon->state->train ? 0 : 1;
}

static status send_down(void *user, door at, const wire_peer *to, wire_msg *message)
{
    OUTSIDE_CORE;
    sim_daemon *daemon = user;
    const span head = wire_msg_part(message, 0);
    frame sent;
    (void)at;
    if (frame_decode(head, "core", &sent) != ST_OK) {
        sim_break(daemon->sim, INV_WIRE, "the core sends what is no message: %s", status_text());
        return ST_OK;
    }
    const size_t bytes = wire_msg_bytes(message);
    if (sent.kind == KIND_LEASE) {
        check_may_work(daemon->sim, daemon, link_of_peer(daemon->sim, to));
        check_files_under_way(daemon->sim, daemon, sent.row, message);
    }
    sim_log_add(&daemon->sim->log, head.data, head.size);
    check_words(daemon->sim, daemon, to, message, &sent);
    const status st = link_send_down(daemon->sim, daemon, to, sent.kind, message);
    if (st == ST_OK && sent.kind == KIND_ROW)
        check_credit(daemon->sim, daemon, to, (int64_t)bytes);
    return st;
}

static void know_worker(void *user, const wire_peer *worker)
{
    OUTSIDE_CORE;
    const sim_daemon *daemon = user;
    sim_link *link = link_of_peer(daemon->sim, worker);
    if (link)
        link->known = true;
}

static void name_host(void *user, const wire_peer *peer, char out[WIRE_HOST_TEXT])
{
    OUTSIDE_CORE;
    const sim_daemon *daemon = user;
    const sim_link *link = link_of_peer(daemon->sim, peer);
    int host = 0;
    if (link && link->kind == END_WORKER)
        host = daemon->sim->worker[link->who]->host;
    snprintf(out, WIRE_HOST_TEXT, "%s", "");
    if (host > 0)
        snprintf(out, WIRE_HOST_TEXT, "10.0.0.%d", host);
}

static status want_section(void *user, source *section)
{
    OUTSIDE_CORE;
    sim_daemon *daemon = user;
    simulation *sim = daemon->sim;
    const int which = daemon_which(daemon, section);
    TRY(conf_copy(&sim->data_options[which], &section->options));
    section->clips = clip_published;
    section->stream_json = strdup(sim->stream_json[which]);
    section->index_path = strdup("");
    section->opening = NULL;
    sim_queue_put(&sim->queue,
                  (sim_event){.at_ns = sim->now_ns + sim_random_tail(&sim->delays, MS, 200 * MS),
                              .kind = EVENT_SECTION,
                              .who = daemon->number,
                              .word = (int64_t)daemon->incarnation << 8 | which});
    return ST_OK;
}

static void close_section(void *user, source *section)
{
    OUTSIDE_CORE;
    source was = *section;
    (void)user;
    section_clear(section); /* its plans borrow what is freed after them */
    index_free(&was.index);
    conf_done(&was.options);
    free(was.stream_json);
    free(was.index_path);
}

static void keep_index(void *user, source *section)
{
    OUTSIDE_CORE;
    sim_daemon *daemon = user;
    daemon->kept[daemon_which(daemon, section)] = true;
    check_index(daemon->sim, daemon_which(daemon, section), section->index);
    if (daemon->sim->rules.one_builds && daemon_which(daemon, section) == 0)
        daemons_start_others(daemon->sim);
}

static int64_t memory_bytes(void *user)
{
    (void)user;
    return 0;
}

static bool writes_log(void *user, int level)
{
    const sim_daemon *daemon = user;
    return daemon->sim->log.trace && level <= LOG_INFO;
}

static void write_log(void *user, int level, const char *line)
{
    OUTSIDE_CORE;
    const sim_daemon *daemon = user;
    (void)level;
    sim_log_tell(&daemon->sim->log, daemon->sim->now_ns, "daemon %d: %s", daemon->number, line);
}

outside daemon_world(sim_daemon *daemon)
{
    return (outside){.shell = daemon,
                     .send = send_down,
                     .know_worker = know_worker,
                     .peer_host = name_host,
                     .start_worker = daemon_start_worker,
                     .start_fingerprinting = daemon_start_prints,
                     .end_process = daemon_end_process,
                     .want_section = want_section,
                     .close_section = close_section,
                     .keep_index = keep_index,
                     .stat_image = daemon_stat_image,
                     .look_at = daemon_look_at,
                     .ship_file = daemon_ship_file,
                     .memory_bytes = memory_bytes,
                     .logs = writes_log,
                     .log = write_log};
}
