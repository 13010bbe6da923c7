/* log_file.h: the file that a log is appended to. It is renamed when it has reached its size, and
 * opened anew when someone else has renamed or removed it, so that logrotate needs no signal and no
 * copytruncate. Used by log.c. */
#ifndef TESSERA_COMMON_PROGRAM_LOG_FILE_H
#define TESSERA_COMMON_PROGRAM_LOG_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { LOG_FILE_KEPT = 3 }; /* older files: NAME.1, the youngest, to NAME.3 */

/* Opens the file in place of the one before it. limit: the bytes at which a line that no longer
 * fits begins a new file; 0: none. Call before threads start. ST_CANT_CREATE. */
WARN_UNUSED status log_file_open(const char *path, int64_t limit);
/* Appends a line, from any thread, by one write(2); nothing if no file is open. A failure is not
 * reported, because there is nowhere to report it. */
void log_file_write(const char *line, size_t size);

#endif
