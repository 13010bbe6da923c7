/* SPDX-License-Identifier: Apache-2.0 */
/* file.h: what readers and writers of files share: reading completely, writing completely and
 * durably, and making folders. */
#ifndef TESSERA_COMMON_BASE_FILE_H
#define TESSERA_COMMON_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"

/* Syncs a folder to disk. Only after that are files that were made, renamed or removed in it sure
 * to survive a crash of the machine. Some network file systems cannot do it and answer EINVAL,
 * which counts as success. ST_IO. */
WARN_UNUSED status file_sync_folder(const char *folder);
/* The same for the folder that contains path. */
WARN_UNUSED status file_sync_parent(const char *path);
/* Reads at an offset, or (-1) where fd stands, as pread(2) and read(2) do, but continues after
 * signals. 0: the file ends there by its size too. A file system in trouble may report an end
 * before it, which is tried again for a quarter of a second. -1: errno says why; EIO if it stays
 * so. */
ssize_t file_read_at(int fd, void *out, size_t size, int64_t offset);
/* Reads all bytes in the same way. Returns how many there were, fewer than asked only at the end of
 * the file; -1: errno says why. */
int64_t file_read_all(int fd, void *out, size_t size, int64_t offset);
/* Writes all bytes, going on after signals and partial writes.
 * False if it cannot; errno says why. */
WARN_UNUSED bool file_write_all(int fd, const void *data, size_t size);
/* Makes every folder of the path that does not exist yet. ST_CANT_CREATE. */
WARN_UNUSED status file_make_folders(const char *path);
/* True for a folder and for a link to one. */
bool file_is_folder(const char *path);

#endif
