/* SPDX-License-Identifier: Apache-2.0 */
/* still_world.c: see still_world.h. */
#include "tests/unit/prepd/serve/still_world.h"

static status drop(void *shell, door at, const wire_peer *to, wire_msg *message)
{
    (void)shell, (void)at, (void)to;
    wire_msg_clear(message);
    return ST_OK;
}

static void know(void *shell, const wire_peer *worker)
{
    (void)shell, (void)worker;
}

static void no_host(void *shell, const wire_peer *peer, char out[WIRE_HOST_TEXT])
{
    (void)shell, (void)peer;
    out[0] = 0;
}

static status start_none(void *shell, char *out_ticket, pid_t *out_pid)
{
    (void)shell, (void)out_ticket, (void)out_pid;
    return FAIL(ST_OS, "no process can be started here");
}

static status no_fingerprinting(void *shell, const char *only, pid_t *out_pid)
{
    (void)only;
    return start_none(shell, NULL, out_pid);
}

static void end_none(void *shell, pid_t pid, bool at_once)
{
    (void)shell, (void)pid, (void)at_once;
}

static status want_none(void *shell, source *section)
{
    (void)shell, (void)section;
    return FAIL(ST_NO_INPUT, "there is no data here");
}

static void touch_none(void *shell, source *section)
{
    (void)shell, (void)section;
}

static void no_file(void *shell, const source *section, int64_t image, int64_t *out_bytes,
                    int64_t *out_mtime_ns)
{
    (void)shell, (void)section, (void)image;
    *out_bytes = *out_mtime_ns = 0;
}

static sight see_none(void *shell, const source *section, const char *file, int64_t *out_size)
{
    (void)shell, (void)section, (void)file, (void)out_size;
    return SIGHT_GONE;
}

static status ship_none(void *shell, const source *section, int64_t image, const image_place *place,
                        const int64_t *index, int64_t count, wire_msg *parts, json_writer *out)
{
    (void)shell, (void)section, (void)image, (void)place, (void)index, (void)count, (void)parts;
    json_begin_key_array(out, "shipped");
    json_end_array(out);
    return ST_OK;
}

static int64_t no_memory(void *shell)
{
    (void)shell;
    return 0;
}

static bool quiet(void *shell, int level)
{
    (void)shell, (void)level;
    return false;
}

static void write_none(void *shell, int level, const char *line)
{
    (void)shell, (void)level, (void)line;
}

outside still_world(void)
{
    return (outside){.send = drop,
                     .know_worker = know,
                     .peer_host = no_host,
                     .start_worker = start_none,
                     .start_fingerprinting = no_fingerprinting,
                     .end_process = end_none,
                     .want_section = want_none,
                     .close_section = touch_none,
                     .keep_index = touch_none,
                     .stat_image = no_file,
                     .look_at = see_none,
                     .ship_file = ship_none,
                     .memory_bytes = no_memory,
                     .logs = quiet,
                     .log = write_none};
}

static bool any_may(const void *user, const lease *leased)
{
    (void)user, (void)leased;
    return true;
}

lease *lease_book_take(lease_book *book, bool fresh)
{
    return lease_book_take_if(book, fresh, any_may, NULL);
}
