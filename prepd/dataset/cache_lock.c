#include "prepd/dataset/cache_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 16, LEAST_FD = 3 /* so that 0 is none */ };

static lock_answer none(const char *path)
{
    (void)FAIL_IN(ST_OS, path, "%s", strerror(errno));
    return LOCK_NONE;
}

/* One made by another user may only be read, which is enough for a lock on a local disk. */
static int open_lock(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 && (errno == EACCES || errno == EPERM))
        fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fd < LEAST_FD) {
        const int other = fcntl(fd, F_DUPFD_CLOEXEC, LEAST_FD);
        close(fd);
        fd = other;
    }
    return fd;
}

static void say_who(int fd)
{
    char host[64] = "", text[LOCK_HOLDER];
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "localhost");
    const int n = snprintf(text, sizeof text, "pid %d on %s", (int)getpid(), host);
    if (ftruncate(fd, 0) == 0)
        (void)!pwrite(fd, text, (size_t)n, 0); /* for people alone */
}

static void read_who(int fd, char out[LOCK_HOLDER])
{
    const ssize_t n = pread(fd, out, LOCK_HOLDER - 1, 0);
    out[n > 0 ? n : 0] = 0;
    if (n <= 0)
        snprintf(out, LOCK_HOLDER, "another prepd");
    for (char *c = out; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
}

/* Its last holder removed it after it was opened here, so that the next to come would make another.
 */
static bool is_gone(int fd, const char *path)
{
    struct stat ours, there;
    return fstat(fd, &ours) != 0 || stat(path, &there) != 0 || ours.st_ino != there.st_ino ||
           ours.st_dev != there.st_dev;
}

lock_answer cache_lock_take(const char *file, cache_lock *out, char out_holder[LOCK_HOLDER])
{
    out->fd = 0;
    if (snprintf(out->path, sizeof out->path, "%s.lock", file) >= (int)sizeof out->path) {
        errno = ENAMETOOLONG;
        return none(file);
    }
    for (int i = 0; i < TRIES; i++) {
        const int fd = open_lock(out->path);
        if (fd < 0)
            return none(out->path);
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            if (!is_gone(fd, out->path)) {
                say_who(fd);
                out->fd = fd;
                return LOCK_OURS;
            }
            close(fd);
            continue;
        }
        const lock_answer answer = errno == EWOULDBLOCK ? LOCK_TAKEN : none(out->path);
        if (answer == LOCK_TAKEN)
            read_who(fd, out_holder);
        close(fd);
        return answer;
    }
    snprintf(out_holder, LOCK_HOLDER, "another prepd"); /* they come and go faster than we look */
    return LOCK_TAKEN;
}

void cache_lock_leave(cache_lock *l)
{
    if (l->fd <= 0)
        return;
    unlink(l->path);
    close(l->fd);
    l->fd = 0;
}
