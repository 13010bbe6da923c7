/* cursor.h: checks a cursor before a run relies on it.
 *
 * A cursor is the JSON text in a row's metadata that says where its stream goes on after that row
 * (wire.md). A consumer keeps it with its checkpoint. This checks what a consumer can know: that
 * the members agree with each other and with the run. Whether the cursor belongs to the data set
 * and plan at hand, only the daemon can tell, and it does so at HELLO. */
#ifndef TESSERA_PROTO_CURSOR_H
#define TESSERA_PROTO_CURSOR_H

#include <stdint.h>

#include "common/base/status.h"

/* Reads the cursor `text` of the stream `stream` ("train"), in a run whose steps have step_rows
 * rows (0 or less: the steps are not checked). *out_row becomes the number of the row to go on at.
 *
 * ST_BAD_INPUT, naming the source and the member: text is no cursor, is one of another stream, or
 * contradicts itself (a row that does not come after the beginning of its epoch, a step that the
 * row is not in, a negative number). ST_CONFIG: it is whole, but an early prepd wrote it, which did
 * not record where the epoch begins; the text says what to do. */
WARN_UNUSED status cursor_read(const char *text, const char *source, const char *stream,
                               int64_t step_rows, int64_t *out_row);

#endif
