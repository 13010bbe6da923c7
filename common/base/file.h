/* file.h: what the writers of files share: writing completely and durably, and making folders. */
#ifndef TESSERA_COMMON_BASE_FILE_H
#define TESSERA_COMMON_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

/* Syncs a folder to disk. Only after that are files that were made, renamed or removed in it sure
 * to survive a crash of the machine. Some network file systems cannot do it and answer EINVAL,
 * which counts as success. ST_IO. */
WARN_UNUSED status file_sync_folder(const char *folder);
/* The same for the folder that contains path. */
WARN_UNUSED status file_sync_parent(const char *path);
/* Writes all bytes, going on after signals and partial writes. False if it cannot; errno says why.
 */
WARN_UNUSED bool file_write_all(int fd, const void *data, size_t size);
/* Makes every folder of the path that does not exist yet. ST_CANT_CREATE. */
WARN_UNUSED status file_make_folders(const char *path);
/* True for a folder and for a link to one. */
bool file_is_folder(const char *path);

#endif
