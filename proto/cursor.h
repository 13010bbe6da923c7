/* cursor.h: a cursor, where a stream goes on after a row (README.md), as a consumer judges it
 * before it stakes a run on it. What only the daemon knows, the index and the plan, the daemon
 * judges. */
#ifndef TESSERA_PROTO_CURSOR_H
#define TESSERA_PROTO_CURSOR_H

#include <stdint.h>

#include "common/base/status.h"

/* ST_BAD_INPUT, naming source and member, where text is no cursor of this stream ("train") with
 * steps of step_rows rows, or one whose members contradict each other: a row that is not after the
 * beginning of its epoch, a step that its row is not of, a negative number. ST_CONFIG: it is whole,
 * but of a prepd too early to go on from. out_row: where it goes on. */
WARN_UNUSED status cursor_read(const char *text, const char *source, const char *stream,
                               int64_t step_rows, int64_t *out_row);

#endif
