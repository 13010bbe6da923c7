/* SPDX-License-Identifier: Apache-2.0 */
/* zip.h: lists the members of a zip file, from its directory, and reads them; zip64 too
 * (PKWARE's APPNOTE 6.3). No library does this here, because none says where the bytes of a stored
 * member lie, and the workers read pictures from there.
 *
 * Every place is checked against the size of the file. Split and encrypted archives are refused. */
#ifndef TESSERA_PREPD_DATASET_ZIP_H
#define TESSERA_PREPD_DATASET_ZIP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum { ZIP_NAME_MAX = 4096 }; /* bytes of a member's name, with its end */

typedef struct zip_member {
    const char *name; /* borrowed during the call */
    int64_t header;   /* offset of its local header */
    int64_t packed;   /* bytes in the zip file; -1 if it is neither stored nor deflated */
    int64_t bytes;    /* bytes when unpacked */
    bool stored;      /* as it is; else compressed */
} zip_member;

/* Receives a member that is a file, in the order of the directory. Any status but ST_OK ends the
 * reading. */
typedef status (*zip_each)(void *user, const zip_member *member);
/* Calls `each` for every file, and returns what it returned. ST_NO_INPUT if there is no such zip
 * file, ST_BAD_INPUT if it is damaged or cannot be read here. */
WARN_UNUSED status zip_read(const char *path, zip_each each, void *user);

/* Finds the offset of a member's bytes in the open file, for which its local header is read. */
WARN_UNUSED status zip_place(int fd, const char *path, const zip_member *member,
                             int64_t *out_offset);

/* Reads a member forward, unpacked. Its checksum is not checked: what is read this way is JSON,
 * whose grammar shows damage. `path` must live as long as the stream. */
typedef struct zip_stream zip_stream;
WARN_UNUSED status zip_open(const char *path, const zip_member *member, zip_stream **out);
/* Gives at most `size` bytes; *out_n is 0 at the end. Takes the stream as void * to serve as the
 * source of json_stream_from. */
WARN_UNUSED status zip_next(void *stream, void *to, size_t size, size_t *out_n);
void zip_close(zip_stream **stream);

#endif
