/* SPDX-License-Identifier: Apache-2.0 */
/* tar.h: lists the members of a plain tar file and where their bytes are, from the headers alone.
 *
 * Reads ustar, GNU (long names, sizes beyond 8 GiB) and PAX (path and size). Checks every header's
 * checksum and every size. A file that stops early and a compressed one are refused. */
#ifndef TESSERA_PREPD_DATASET_TAR_H
#define TESSERA_PREPD_DATASET_TAR_H

#include <stdint.h>

#include "common/base/status.h"

enum { TAR_NAME_MAX = 4096 }; /* bytes of a member's name, with its end */

typedef struct tar_member {
    const char *name;      /* borrowed during the call */
    int64_t offset, bytes; /* where its bytes are in the file */
} tar_member;

/* Receives a regular file of the tar. `fd` is the open tar file, from which the member may be read
 * during the call. Any status but ST_OK ends the reading. */
typedef status (*tar_each)(void *user, const tar_member *member, int fd);
/* Calls `each` for every regular file, in order, and returns what it returned. ST_NO_INPUT if there
 * is no such file; ST_BAD_INPUT, with the byte, if it is damaged, stops early or is compressed. */
WARN_UNUSED status tar_read(const char *path, tar_each each, void *user);

#endif
