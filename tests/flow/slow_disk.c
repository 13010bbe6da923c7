/* SPDX-License-Identifier: Apache-2.0 */
/* slow_disk.c: preloaded (LD_PRELOAD), it plays a slow disk, or one that fills up: each fsync of
 * the rank $TESSERA_SLOW_RANK begins $TESSERA_SLOW_MS milliseconds late; and before a file is
 * opened whose path has $TESSERA_FULL_AT in it, what is left of its disk is filled by a file beside
 * it. */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int fsync(int fd)
{
    const char *slow = getenv("TESSERA_SLOW_RANK"), *ms = getenv("TESSERA_SLOW_MS");
    const char *own = getenv("OMPI_COMM_WORLD_RANK");
    own = own ? own : getenv("RANK");
    if (slow && own && ms && strcmp(slow, own) == 0)
        nanosleep(
            &(struct timespec){.tv_sec = atoi(ms) / 1000, .tv_nsec = atoi(ms) % 1000 * 1000000},
            NULL);
    return (int)syscall(SYS_fsync, fd);
}

/* Writes a file beside this one until there is no room for a byte. */
static void fill_disk(const char *path)
{
    static const char zeros[1 << 16];
    char beside[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(beside, sizeof beside, "%.*s/.filler", slash ? (int)(slash - path) : 1,
             slash ? path : ".");
    const int fd =
        (int)syscall(SYS_openat, AT_FDCWD, beside, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    for (size_t size = sizeof zeros; fd >= 0 && size > 0; size /= 2)
        while (write(fd, zeros, size) > 0)
            ;
    if (fd >= 0)
        close(fd);
}

FILE *fopen(const char *path, const char *mode)
{
    const char *full = getenv("TESSERA_FULL_AT");
    FILE *(*real)(const char *, const char *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    if (full && *mode == 'w' && strstr(path, full))
        fill_disk(path);
    return real(path, mode);
}
