/* cache_lock.c: flock(2) on FILE.lock. The holder removes the file before it unlocks it, so a
 * process that has just locked a file must check that it is still the one with that name. */
#include "prepd/dataset/cache_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 16, LEAST_FD = 3 /* so that a descriptor is never 0, which means "not held" */ };

static lock_answer none(const char *path)
{
    (void)FAIL_IN(ST_OS, path, "%s", strerror(errno));
    return LOCK_NONE;
}

/* A lock file that another user made may only be readable, which is enough to lock it on a local
 * disk. */
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
    const int length = snprintf(text, sizeof text, "pid %d on %s", (int)getpid(), host);
    if (ftruncate(fd, 0) == 0)
        (void)!pwrite(fd, text, (size_t)length, 0); /* only people read it */
}

static void read_who(int fd, char out[LOCK_HOLDER])
{
    const ssize_t got = pread(fd, out, LOCK_HOLDER - 1, 0);
    out[got > 0 ? got : 0] = 0;
    if (got <= 0)
        snprintf(out, LOCK_HOLDER, "another prepd");
    for (char *letter = out; *letter; letter++)
        if (*letter < ' ' || *letter > '~')
            *letter = '?';
}

/* Whether the last holder removed the file after it was opened here. Then the lock on it is worth
 * nothing, because the next process would make a new file. */
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
    snprintf(out_holder, LOCK_HOLDER,
             "another prepd"); /* holders come and go faster than we look */
    return LOCK_TAKEN;
}

void cache_lock_leave(cache_lock *lock)
{
    if (lock->fd <= 0)
        return;
    unlink(lock->path);
    close(lock->fd);
    lock->fd = 0;
}
