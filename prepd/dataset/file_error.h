/* file_error.h: whom a failed open, stat or read is to be blamed on. */
#ifndef TESSERA_PREPD_DATASET_FILE_ERROR_H
#define TESSERA_PREPD_DATASET_FILE_ERROR_H

#include <errno.h>
#include <stdbool.h>

/* An errno that says something of the file. Any other is trouble of the machine that met it (a
 * disk, a mount, descriptors), which may pass. */
static inline bool file_error_is_its_own(int error)
{
    return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP ||
           error == EACCES || error == EPERM || error == ENXIO; /* the last: a socket */
}

#endif
