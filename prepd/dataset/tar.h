/* tar.h: the members of a plain tar file, from its headers alone: where their bytes are.
 *
 * Reads ustar, GNU (long names, sizes beyond 8 GiB) and PAX (path, size). Every header's checksum
 * and every size is checked; a file that stops early, and a compressed one, are refused. */
#ifndef TESSERA_PREPD_DATASET_TAR_H
#define TESSERA_PREPD_DATASET_TAR_H

#include <stdint.h>

#include "common/base/status.h"

enum { TAR_NAME_MAX = 4096 };

typedef struct tar_member {
    const char *name; /* borrowed during the call */
    int64_t offset, bytes;
} tar_member;

/* fd: of the file, for reading a member during the call. Regular files only. Another status than
 * ST_OK ends the reading and is returned. */
typedef status (*tar_each)(void *user, const tar_member *m, int fd);
WARN_UNUSED status tar_read(const char *path, tar_each each, void *user);

#endif
