/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_files.c: what a simulated daemon finds in its files, and what it sends of them. Rows may
 * find a file gone or changed that was there for the index. */
#include <errno.h>
#include <string.h>

#include "tests/sim/prepd/daemon_world.h"
#include "tests/sim/prepd/sim_faults.h"

/* What the daemon finds now. As long as the index is being built, a file is as it was. */
static picture_fate fate_now(const sim_daemon *daemon, const source *section,
                             const sim_picture *own)
{
    const bool later = section->ready || own->fate < PICTURE_FAILS;
    return later ? sim_data_fate_at(own, daemon->sim->now_ns) : PICTURE_FINE;
}

static const sim_data *data_of(const sim_daemon *daemon, const source *section)
{
    return &daemon->sim->data[daemon_which(daemon, section)];
}

/* The size of a picture's file now; 0: it is not there. */
static int64_t bytes_now(const sim_daemon *daemon, const source *section, const sim_picture *own)
{
    const picture_fate fate = fate_now(daemon, section, own);
    if (fate == PICTURE_NOT_THERE && section->ready && daemon->sim->rules.appear)
        return own->bytes; /* its index stays as it is */
    if (fate == PICTURE_NOT_THERE || fate == PICTURE_VANISHES)
        return 0;
    return own->bytes + (fate == PICTURE_CHANGES);
}

void daemon_stat_image(void *user, const source *section, int64_t image, int64_t *out_bytes,
                       int64_t *out_mtime_ns)
{
    OUTSIDE_CORE;
    sim_daemon *daemon = user;
    const sim_picture *own = &data_of(daemon, section)->picture[image];
    *out_bytes = bytes_now(daemon, section, own);
    if (daemon->no_stat && !daemon->was_blind) {
        daemon->no_stat = false;
        daemon->was_blind = daemon->knew_no_size = true;
        daemon->sim->stats->no_stats++;
        *out_bytes = -1;
    }
    *out_mtime_ns = *out_bytes > 0 ? own->mtime_ns : 0;
}

sight daemon_look_at(void *user, const source *section, const char *file, int64_t *out_size)
{
    OUTSIDE_CORE;
    sim_daemon *daemon = user;
    const sim_data *data = data_of(daemon, section);
    const bool blind = daemon->no_sight || (section->ready && fault_comes_before_look(daemon));
    daemon->no_sight = false;
    daemon->saw_trouble |= blind;
    if (blind)
        return SIGHT_TROUBLE;
    for (int64_t i = 0; i < data->n_pictures; i++) {
        const sim_picture *own = &data->picture[i];
        const size_t length = strlen(own->name);
        if (strncmp(own->name, file, length) != 0 || (file[length] != 0 && file[length] != '/'))
            continue;
        *out_size = bytes_now(daemon, section, own);
        return *out_size > 0 ? SIGHT_THERE : SIGHT_GONE;
    }
    return SIGHT_GONE;
}

/* The bytes of a file: a worker reads in them which picture it is, which of its frames, and when it
 * was read. */
static status add_bytes(int64_t image, int64_t nth, int64_t at_ns, wire_msg *parts,
                        json_writer *out)
{
    const int64_t word[SENT_WORDS] = {image, nth, at_ns};
    uint8_t *bytes;
    json_put_key_int(out, "part", (int64_t)wire_msg_parts(parts) + PARTS_BEFORE_FILES);
    TRY(wire_msg_add_space(parts, sizeof word, &bytes));
    memcpy(bytes, word, sizeof word);
    return ST_OK;
}

status daemon_ship_file(void *user, const source *section, int64_t image, const image_place *place,
                        const int64_t *index, int64_t count, wire_msg *parts, json_writer *out)
{
    OUTSIDE_CORE;
    sim_daemon *daemon = user;
    const sim_picture *own = &data_of(daemon, section)->picture[image];
    const int64_t bytes = bytes_now(daemon, section, own);
    status st = ST_OK;
    if (daemon->no_memory) {
        daemon->no_memory = false;
        daemon->ran_short = true;
        return FAIL(ST_NO_MEMORY, "no memory for a file that is to be sent");
    }
    json_begin_key_array(out, "shipped");
    for (int64_t i = 0; st == ST_OK && i < (place->n_frames ? count : 1); i++) {
        json_begin_object(out);
        if (daemon->no_ship || bytes == 0) {
            json_put_key_int(out, "errno", daemon->no_ship ? EIO : ENOENT);
            daemon->sim->stats->files_not_sent++;
        } else {
            st = add_bytes(image, index ? index[i] : i, daemon->sim->now_ns, parts, out);
            json_put_key_int(out, "size", bytes);
            json_put_key_int(out, "mtime", own->mtime_ns);
            daemon->sim->stats->files_sent++;
        }
        daemon->no_ship = false;
        json_end_object(out);
    }
    json_end_array(out);
    return st;
}
