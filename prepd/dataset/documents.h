/* documents.h: plain text in .txt files (RECORDS_BLOCKS and RECORDS_FILES of records.h).
 *
 * A document is the text between two blank lines of a file, or a whole file. It is taken as it
 * stands: from its first line that is not blank to its last one, without the end of that line, and
 * with line ends of Windows (CR LF) as LF. A byte order mark at the beginning of a file is left
 * out. A document must be UTF-8 without zero bytes and may have RECORD_BYTES bytes; another one
 * stays in the list with a cause. A file is read a line at a time, so memory does not grow with it.
 */
#ifndef TESSERA_PREPD_DATASET_DOCUMENTS_H
#define TESSERA_PREPD_DATASET_DOCUMENTS_H

#include "common/base/arena.h"
#include "prepd/dataset/records.h"

/* Receives the place of one document.
 * If it cannot be used, `cause` says why, with file and line. */
typedef status (*document_each)(void *user, const record_place *at, const char *cause);
/* Reads every file from its beginning to its end, and notes its restart points. Any status of
 * `each` but ST_OK ends the scan and is returned, except that ST_END becomes ST_OK. ST_BAD_INPUT
 * for a file that holds JSON lines after all. */
WARN_UNUSED status documents_scan(record_files *files, document_each each, void *user);

/* Reads a document again; it lives in `memory`, terminated. ST_BAD_INPUT if the file changed in the
 * meantime. */
WARN_UNUSED status documents_read(record_files *files, const record_place *at, arena *memory,
                                  char **out, int64_t *out_bytes);

#endif
