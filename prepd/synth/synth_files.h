/* synth_files.h: the few file operations that synth needs. Every error has the path in it. */
#ifndef TESSERA_PREPD_SYNTH_FILES_H
#define TESSERA_PREPD_SYNTH_FILES_H

#include <stddef.h>

#include "common/json/json.h"
#include "common/base/status.h"

enum { FILES_PATH_MAX = 4096 }; /* bytes, with the end */

/* Writes "folder/NAME" to `out`, where NAME is formatted as by printf. ST_BAD_INPUT if it is too
 * long. */
WARN_UNUSED status files_path(char out[FILES_PATH_MAX], const char *folder, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
WARN_UNUSED status files_write(const char *path, const void *data, size_t size);
/* Writes what the writer holds to folder/name and empties the writer. */
WARN_UNUSED status files_write_json(const char *folder, const char *name, json_writer *writer);
/* Makes a folder and those above it; one that exists is fine. */
WARN_UNUSED status files_make_folder(const char *path);
/* Removes the files, but not the folders, whose names begin with `prefix`. That there are none, or
 * no such folder, is not an error. */
WARN_UNUSED status files_remove(const char *folder, const char *prefix);

#endif
