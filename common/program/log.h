/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: the log, one line for each event, on stderr. stdout is for the results of a command.
 *
 * A line is plain ("12:01:07 info  prepd: index built samples=444 seconds=1.2") or, with log.json,
 * one JSON object. The fields after the text are key=value pairs in the format string:
 *     log_info("worker joined id=%d host=%s", id, host);
 * A value with spaces is put in quotes (cause=\"%s\"); quotes inside of it need no backslash. A
 * value without quotes around it holds neither spaces nor quotes.
 *
 * Functions that can fail return a status and do not log; the code at the top that handles the
 * failure logs it. */
#ifndef TESSERA_COMMON_PROGRAM_LOG_H
#define TESSERA_COMMON_PROGRAM_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG }; /* in the order of log.level's choices */

/* Sets up the log of this process, before threads start. role names the process in every line:
 * "prepd", "worker 3", "trainer"; it is copied. Events above `level` are dropped. */
void log_init(const char *role, int level, bool json);
/* Changes the level; can be called at any time from any thread. */
void log_set_level(int level);
/* From now on also appends every event to this file, which is renamed at limit_bytes (log_file.h).
 * Events above stderr_level then go only to the file. Call before threads start. ST_CANT_CREATE. */
WARN_UNUSED status log_keep(const char *path, int64_t limit_bytes, int stderr_level);
/* Stops writing to stderr, or starts again; the file of log_keep is written either way. Can be
 * called at any time. */
void log_hush(bool hushed);
/* Whether events of this level are written. */
bool log_on(int level);
/* Writes an event, by one write(2), so that lines of several processes do not mix; above the
 * progress bar, if there is one (bar.h). Use the macros below. */
void log_event(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Logs the thread's last failure as an error,
 * and at debug level its code and place in our source. */
void log_status(void);

#define log_error(...) log_event(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_event(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_event(LOG_INFO, __VA_ARGS__)
#define log_debug(...)                                                                             \
    do {                                                                                           \
        if (log_on(LOG_DEBUG))                                                                     \
            log_event(LOG_DEBUG, __VA_ARGS__);                                                     \
    } while (0)

/* The file that a log is appended to. It is renamed when it has reached its size, and
 * opened anew when someone else has renamed or removed it, so that logrotate needs no signal and no
 * copytruncate. */

enum { LOG_FILE_KEPT = 3 }; /* older files: NAME.1, the youngest, to NAME.3 */

/* Opens the file in place of the one before it. limit: the bytes at which a line that no longer
 * fits begins a new file; 0: none. Call before threads start. ST_CANT_CREATE. */
WARN_UNUSED status log_file_open(const char *path, int64_t limit);
/* Appends a line, from any thread, by one write(2); nothing if no file is open. A failure is not
 * reported, because there is nowhere to report it. */
void log_file_write(const char *line, size_t size);

#endif
