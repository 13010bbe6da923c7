/* SPDX-License-Identifier: Apache-2.0 */
/* outside.h: what the core of the dispatcher asks of the world outside it: a table that the shell
 * fills. A simulator fills it as well.
 *
 * The core decides and touches nothing itself: it opens no socket, starts no process, reads no file
 * and no clock. What happens outside comes to it as calls (dispatch.h). What it wants done outside
 * goes through this table, whose functions return at once and never call back into the core. */
#ifndef TESSERA_PREPD_SERVE_CORE_STATE_OUTSIDE_H
#define TESSERA_PREPD_SERVE_CORE_STATE_OUTSIDE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/json/json.h"
#include "common/program/log.h"
#include "prepd/agreed/ticket.h"
#include "prepd/dataset/dataset.h"
#include "proto/wire/wire.h"

typedef struct source source; /* a data section; dispatch_state.h */

/* The endpoints that peers connect to. */
typedef enum door { DOOR_CONSUMERS, DOOR_WORKERS, DOOR_CONTROL, N_DOORS } door;

/* A file of the data set, as the daemon's machine sees it. */
typedef enum sight {
    SIGHT_THERE,  /* the file is there */
    SIGHT_GONE,   /* it is missing or unusable */
    SIGHT_TROUBLE /* it cannot be read now, for a reason that is not the file's own */
} sight;

typedef struct outside {
    void *shell; /* the first argument of all */

    /* As wire_send: on success the message is empty. TIMEOUT: the peer has not taken what was sent
     * before. UNAVAILABLE: it cannot be reached. */
    status (*send)(void *shell, door at, const wire_peer *to, wire_msg *message);
    /* The worker has joined: it may send messages as long as a row from now on. */
    void (*know_worker)(void *shell, const wire_peer *worker);
    /* The address of a peer's connection; "" if there is none. */
    void (*peer_host)(void *shell, const wire_peer *peer, char out[WIRE_HOST_TEXT]);

    /* Starts a local worker, and gives it the ticket that it says when it joins. */
    status (*start_worker)(void *shell, char out_ticket[TICKET_TEXT], pid_t *out_pid);
    /* Starts the process that makes the fingerprints named in `only`, a list with commas. */
    status (*start_fingerprinting)(void *shell, const char *only, pid_t *out_pid);
    /* Ends a process that was started, by SIGKILL (at_once) or SIGTERM. */
    void (*end_process)(void *shell, pid_t pid, bool at_once);

    /* Resolves the options of a section, then opens its files beside the loop; section_opened is
     * called when that is done. A failure is one of the options. */
    status (*want_section)(void *shell, source *section);
    /* Frees what want_section and section_opened brought. */
    void (*close_section)(void *shell, source *section);
    /* Writes the sealed index to its file, if there is a place for it. Others may then read it. */
    void (*keep_index)(void *shell, source *section);

    /* As dataset_image_stat: -1 bytes if the size cannot be found out now. */
    void (*stat_image)(void *shell, const source *section, int64_t image, int64_t *out_bytes,
                       int64_t *out_mtime_ns);
    /* Looks at a file below the root of the data set. *out_size is set if it is there. */
    sight (*look_at)(void *shell, const source *section, const char *file, int64_t *out_size);
    /* As ship_file (shell.h). */
    status (*ship_file)(void *shell, const source *section, int64_t image, const image_place *place,
                        const int64_t *index, int64_t count, wire_msg *parts, json_writer *out);

    int64_t (*memory_bytes)(void *shell); /* resident, of the daemon; for its status */
    bool (*logs)(void *shell, int level); /* whether lines of this level (log.h) are written */
    void (*log)(void *shell, int level, const char *line);
} outside;

/* --- shorthands over the table --- */

/* Sends a header of this kind and row number, and one part of JSON.
 * The errors are those of send. */
WARN_UNUSED status outside_send_json(const outside *world, door at, const wire_peer *to, int kind,
                                     uint64_t row, const char *json, size_t size);
/* The same, followed by the parts of `more` (may be NULL), which are moved out of it. */
WARN_UNUSED status outside_send_json_with(const outside *world, door at, const wire_peer *to,
                                          int kind, uint64_t row, const char *json, size_t size,
                                          wire_msg *more);
/* The same of what the writer has, which is done with. */
WARN_UNUSED status outside_send_writer(const outside *world, door at, const wire_peer *to, int kind,
                                       uint64_t row, json_writer *writer);
/* Sends the thread's note as an error with this code, if the peer takes it. */
void outside_send_error(const outside *world, door at, const wire_peer *to, status code);
/* Writes a line to the log. The form of a line is that of log.h. */
void outside_log(const outside *world, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define outside_warn(world, ...)  outside_log(world, LOG_WARN, __VA_ARGS__)
#define outside_info(world, ...)  outside_log(world, LOG_INFO, __VA_ARGS__)
#define outside_debug(world, ...) outside_log(world, LOG_DEBUG, __VA_ARGS__)

/* --- limits: no one peer can fill the log or keep others waiting ---
 *
 * A refused message is answered and counted, but only the first few are logged. A connection whose
 * messages are refused again and again is no longer listened to. How many messages are read in a
 * turn of the loop is up to who reads them (doors.h). */

/* A connection whose messages were refused. */
enum { MAX_OFFENDERS = 64 };
typedef struct offender {
    wire_peer peer;
    int offences;
} offender;

/* All zeros is the state at the start. */
typedef struct peer_limits {
    offender offenders[MAX_OFFENDERS];
    unsigned next_offender;   /* the place that the next one takes */
    const wire_peer *reading; /* the peer whose message is being handled; NULL outside */
    int64_t told;             /* refusals since peer_limits_log, logged or not */
    /* Since the start: messages and peers, among them workers that make other rows; and
     * connections by key. */
    uint64_t refused, refused_builds, refused_keys;
} peer_limits;

/* Whether a connection's messages were refused so often that further ones are dropped unread. */
bool peer_limits_ignores(const peer_limits *limits, const wire_peer *from);
/* Refuses a peer's message: sends it the thread's note as an error, and logs that too, unless too
 * many were logged already. `what` says what kind of peer it is. */
void peer_limits_refuse(peer_limits *limits, const outside *world, door at, const wire_peer *to,
                        const char *what, status st);
/* Counts an offence of the peer whose message is being handled. */
void peer_limits_offence(peer_limits *limits, const outside *world);
/* Logs how many refusals were not shown. Call it every few seconds. */
void peer_limits_log(peer_limits *limits, const outside *world);

#endif
