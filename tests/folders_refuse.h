/* SPDX-License-Identifier: Apache-2.0 */
/* folders_refuse.h: an fsync that takes the place of libc's in a test program. While folders_refuse
 * is set, it fails for folders, as it does on some file systems. */
#ifndef TESSERA_TESTS_FOLDERS_REFUSE_H
#define TESSERA_TESTS_FOLDERS_REFUSE_H

#include <errno.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool folders_refuse;

int fsync(int fd)
{
    struct stat about;
    if (folders_refuse && fstat(fd, &about) == 0 && S_ISDIR(about.st_mode)) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

#endif
