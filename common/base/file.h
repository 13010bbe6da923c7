/* file.h: what several writers of files need of the file system. */
#ifndef TESSERA_COMMON_BASE_FILE_H
#define TESSERA_COMMON_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

/* What was made, renamed or removed in the folder lasts only after this. Where a file system cannot
 * do it (EINVAL: some that are mounted over a network), it is left to it. ST_IO. */
WARN_UNUSED status file_sync_folder(const char *folder);
/* The same of the folder that path lies in. */
WARN_UNUSED status file_sync_parent(const char *path);
/* All of it, whatever signals come in between; false: errno says why not. */
WARN_UNUSED bool file_write_all(int fd, const void *data, size_t size);
/* Every missing folder of the path. ST_CANT_CREATE. */
WARN_UNUSED status file_make_folders(const char *path);
/* A folder, or a link to one. */
bool file_is_folder(const char *path);

#endif
