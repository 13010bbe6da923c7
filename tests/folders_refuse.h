/* folders_refuse.h: an fsync in place of libc's, for one test program: some file systems refuse it
 * of folders, and then so does this. */
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
