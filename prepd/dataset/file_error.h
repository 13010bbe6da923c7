/* file_error.h: tells a fault of a file from a fault of the machine that tried to open, stat or
 * read it. */
#ifndef TESSERA_PREPD_DATASET_FILE_ERROR_H
#define TESSERA_PREPD_DATASET_FILE_ERROR_H

#include <errno.h>
#include <stdbool.h>

/* True for an errno that says something about the file itself: it is missing, its path is wrong, or
 * it may not be read. Any other error is a problem of the machine that met it (a disk, a mount, too
 * many descriptors), which may pass. */
static inline bool file_error_is_its_own(int error)
{
    return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP ||
           error == EACCES || error == EPERM || error == ENXIO; /* ENXIO: the file is a socket */
}

#endif
