/* synth_files.h: the few file operations of synth, with the path in every error. */
#ifndef TESSERA_PREPD_SYNTH_FILES_H
#define TESSERA_PREPD_SYNTH_FILES_H

#include <stddef.h>

#include "common/json/json.h"
#include "common/base/status.h"

enum { FILES_PATH_MAX = 4096 };

/* "folder/name..." by a format; ST_BAD_INPUT if it does not fit. */
WARN_UNUSED status files_path(char out[FILES_PATH_MAX], const char *folder, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
WARN_UNUSED status files_write(const char *path, const void *data, size_t size);
/* Writes what the writer holds to folder/name and empties it. */
WARN_UNUSED status files_write_json(const char *folder, const char *name, json_writer *w);
/* Makes the folder and those above it. */
WARN_UNUSED status files_make_folder(const char *path);
/* Removes the files (not folders) of a folder whose names begin with prefix; none is no error. */
WARN_UNUSED status files_remove(const char *folder, const char *prefix);

#endif
