/* SPDX-License-Identifier: Apache-2.0 */
/* daemon_world.h: what the core of a simulated daemon may ask of the world around it. */
#ifndef TESSERA_TESTS_SIM_PREPD_DAEMON_WORLD_H
#define TESSERA_TESTS_SIM_PREPD_DAEMON_WORLD_H

#include "tests/sim/common/sim_memory.h"
#include "tests/sim/prepd/sim.h"

extern const char sim_build[];                 /* the build id of honest peers */
extern const char *const sim_prints[N_PRINTS]; /* their fingerprints */

enum {
    SENT_WORDS = 3,        /* of the bytes that are sent of a file */
    PARTS_BEFORE_FILES = 2 /* of a lease's message */
};

/* The first line of every function of the table: until it returns, the world has memory, whatever
 * its daemon is refused. */
static inline void daemon_world_left(const bool *was)
{
    sim_memory_hold(*was);
}
#define OUTSIDE_CORE                                                                               \
    const bool was_held __attribute__((cleanup(daemon_world_left), unused)) = sim_memory_hold(true)

/* 0: train, 1: eval. */
int daemon_which(const sim_daemon *daemon, const source *section);

/* --- daemon_files.c: as the functions of outside.h --- */
void daemon_stat_image(void *user, const source *section, int64_t image, int64_t *out_bytes,
                       int64_t *out_mtime_ns);
sight daemon_look_at(void *user, const source *section, const char *file, int64_t *out_size);
status daemon_ship_file(void *user, const source *section, int64_t image, const image_place *place,
                        const int64_t *index, int64_t count, wire_msg *parts, json_writer *out);

/* --- daemon_processes.c: the same --- */
status daemon_start_worker(void *user, char out_ticket[TICKET_TEXT], pid_t *out_pid);
status daemon_start_prints(void *user, const char *only, pid_t *out_pid);
void daemon_end_process(void *user, pid_t pid, bool at_once);

/* The table of outside.h, filled with functions that put events into the simulated world. */
outside daemon_world(sim_daemon *daemon);

#endif
