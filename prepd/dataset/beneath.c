/* beneath.c: openat2(2) with RESOLVE_BENEATH; where the kernel refuses that call, a walk over the
 * folders of the path that follows no link. */
#include "prepd/dataset/beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* openat2 fails with EAGAIN if a rename anywhere comes between its checks; this is how often it is
 * tried. */
enum { RACES = 64 };

static void close_keeping_errno(int fd)
{
    const int error = errno;
    close(fd);
    errno = error;
}

static int open_folder(const char *folder)
{
    return open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* Opens one step of the path. EXDEV for a link and for "..", which is told apart from everything
 * else that cannot be opened. */
static int open_no_link(int at, const char *name, int flags)
{
    struct stat info;
    if (strcmp(name, "..") == 0) {
        errno = EXDEV;
        return -1;
    }
    if (fstatat(at, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode)) {
        errno = EXDEV;
        return -1;
    }
    const int fd = openat(at, name, flags | O_NOFOLLOW);
    if (fd < 0 && errno == ELOOP) /* it became a link just now */
        errno = EXDEV;
    if (fd < 0 || !(flags & O_PATH) || fstat(fd, &info) != 0 || !S_ISLNK(info.st_mode))
        return fd;
    close(fd); /* O_PATH opens the link itself */
    errno = EXDEV;
    return -1;
}

int beneath_walk(const char *folder, const char *path, int flags)
{
    char name[NAME_MAX + 1];
    int at = open_folder(folder);
    while (at >= 0) {
        path += strspn(path, "/");
        const size_t count = strcspn(path, "/"), rest = strspn(path + count, "/");
        if (count == 0 || count > NAME_MAX) {
            close(at);
            errno = count == 0 ? ENOENT : ENAMETOOLONG;
            return -1;
        }
        memcpy(name, path, count);
        name[count] = 0;
        path += count + rest;
        const bool last = *path == 0;
        const int next =
            open_no_link(at, name, last ? flags | O_CLOEXEC : O_PATH | O_DIRECTORY | O_CLOEXEC);
        close_keeping_errno(at);
        if (last)
            return next;
        at = next;
    }
    return -1;
}

int beneath_open(const char *folder, const char *path, int flags)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    const int at = open_folder(folder);
    long fd = -1;
    if (at < 0)
        return -1;
    errno = EAGAIN;
    for (int k = 0; k < RACES && fd < 0 && errno == EAGAIN; k++)
        fd = syscall(SYS_openat2, at, path, &how, sizeof(how));
    close_keeping_errno(at);
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM))
        return (int)fd;
    return beneath_walk(folder, path, flags);
}
