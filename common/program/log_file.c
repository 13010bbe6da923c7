/* log_file.c: see log_file.h. A rename or a new file that fails changes nothing: lines go on to the
 * file that is open, and after another `limit` bytes it is tried again. */
#include "common/program/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"

static struct {
    pthread_mutex_t lock;
    int fd;
    int64_t limit, size; /* of the open file */
    char path[STATUS_PATH_MAX];
} file = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static int open_path(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static void take_file(int fd)
{
    struct stat now;
    if (fd < 0)
        return;
    if (file.fd >= 0)
        close(file.fd);
    file.fd = fd;
    file.size = fstat(fd, &now) == 0 ? now.st_size : 0;
}

static bool is_moved(void)
{
    struct stat ours, there;
    return fstat(file.fd, &ours) == 0 &&
           (stat(file.path, &there) != 0 || ours.st_ino != there.st_ino ||
            ours.st_dev != there.st_dev);
}

/* Writes the name of the file that was the open one `age` renames ago. */
static void name_of(int age, char out[STATUS_PATH_MAX + 16])
{
    snprintf(out, STATUS_PATH_MAX + 16, age ? "%s.%d" : "%s", file.path, age);
}

static void begin_anew(void)
{
    char from[STATUS_PATH_MAX + 16], to[STATUS_PATH_MAX + 16];
    for (int age = LOG_FILE_KEPT; age > 0; age--) {
        name_of(age - 1, from);
        name_of(age, to);
        (void)rename(from, to);
    }
    file.size = 0;
    if (is_moved())
        take_file(open_path(file.path));
}

status log_file_open(const char *path, int64_t limit)
{
    if (strlen(path) >= sizeof file.path)
        return FAIL_IN(ST_CANT_CREATE, path, "the path is too long");
    const int fd = open_path(path);
    if (fd < 0)
        return FAIL_IN(ST_CANT_CREATE, path, "cannot open the log file: %s", strerror(errno));
    strcpy(file.path, path);
    file.limit = limit;
    take_file(fd);
    return ST_OK;
}

void log_file_write(const char *line, size_t size)
{
    pthread_mutex_lock(&file.lock);
    if (file.fd >= 0) {
        if (is_moved())
            take_file(open_path(file.path));
        if (file.limit > 0 && file.size > 0 && file.size + (int64_t)size > file.limit)
            begin_anew();
        (void)!file_write_all(file.fd, line, size);
        file.size += (int64_t)size;
    }
    pthread_mutex_unlock(&file.lock);
}
