/* zip.h: the members of a zip file, from its directory: where their bytes are. Zip64 too. No
 * library is asked, because none says where a stored member's bytes lie, and the workers read them
 * there.
 *
 * Every place is checked against the file. Split and encrypted archives are refused. */
#ifndef TESSERA_PREPD_DATASET_ZIP_H
#define TESSERA_PREPD_DATASET_ZIP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

enum { ZIP_NAME_MAX = 4096 };

typedef struct zip_member {
    const char *name;      /* borrowed during the call */
    int64_t header;        /* offset of its local header */
    int64_t packed, bytes; /* in the file, and unpacked */
    bool stored;           /* else deflated */
} zip_member;

/* Files only, in the directory's order; members of other methods than stored and deflate are handed
 * out with packed -1. Another status than ST_OK ends the reading and is returned. */
typedef status (*zip_each)(void *user, const zip_member *m);
WARN_UNUSED status zip_read(const char *path, zip_each each, void *user);

/* Offset of the member's bytes: its local header is read. */
WARN_UNUSED status zip_place(int fd, const char *path, const zip_member *m, int64_t *out_offset);

/* Reads a member forward, unpacked; its checksum is not asked, JSON has its own grammar. */
typedef struct zip_stream zip_stream;
WARN_UNUSED status zip_open(const char *path, const zip_member *m, zip_stream **out);
WARN_UNUSED status zip_next(void *zip_stream, void *to, size_t size, size_t *out_n);
void zip_close(zip_stream **z);

#endif
