/* log.h: one event, one line. Plain on a terminal ("12:01:07 info  prepd: index built
 * samples=444 seconds=1.2"), one JSON object with --log.json. To stderr; stdout is for answers.
 *
 * Modules return a status; storytellers log. Fields after the text are key=value pairs made with
 * the format string: log_info("worker joined id=%d host=%s", id, host). A value with spaces stands
 * in quotes (cause=\"%s\"), others hold neither; quotes inside of it need no backslash. */
#ifndef TESSERA_COMMON_PROGRAM_LOG_H
#define TESSERA_COMMON_PROGRAM_LOG_H

#include <stdbool.h>

#include "common/base/status.h"

enum { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG }; /* in the order of log.level's choices */

/* role: "prepd", "worker 3", "trainer"; copied. */
void log_init(const char *role, int level, bool json);
void log_set_level(int level); /* at any time, from any thread */
/* Every event goes to this file too, behind what is in it; to stderr only those up to `level`.
 * Before threads start. ST_CANT_CREATE. */
WARN_UNUSED status log_keep(const char *path, int stderr_level);
/* From here on nothing goes to stderr, or everything does again; a kept file gets it either way.
 * May be called at any time.
 */
void log_hush(bool hushed);
bool log_on(int level);
void log_event(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The thread's last failure as an error event, with the place in our source at debug level. */
void log_status(void);

#define log_error(...) log_event(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_event(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_event(LOG_INFO, __VA_ARGS__)
#define log_debug(...)                                                                             \
    do {                                                                                           \
        if (log_on(LOG_DEBUG))                                                                     \
            log_event(LOG_DEBUG, __VA_ARGS__);                                                     \
    } while (0)

#endif
