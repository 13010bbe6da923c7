/* dry_run_folder.c: makes the folder, and forks the process that removes it. */
#include "trainer/check/dry_run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/program/log.h"
#include "trainer/checkpoint/folder.h"

static status make_temp_folder(const char *name, char out[STATUS_PATH_MAX])
{
    const char *temp = getenv("TMPDIR");
    char path[STATUS_PATH_MAX];
    if (snprintf(path, sizeof path, "%s/dry-run-%s", temp && *temp ? temp : "/tmp",
                 name ? name : "XXXXXX") >= (int)sizeof path)
        return FAIL(ST_CANT_CREATE, "the path of TMPDIR is too long for a dry run's folder");
    if (name ? mkdir(path, 0700) != 0 && errno != EEXIST : !mkdtemp(path))
        return FAIL_IN(ST_CANT_CREATE, path, "%s", strerror(errno));
    memcpy(out, path, sizeof path);
    return ST_OK;
}

/* The second process. It is in a session of its own, so that no signal to the run's process group
 * reaches it, and it closes every file of the run, because another process may be waiting for one
 * of them to close. It reads from the pipe until the run ends; a byte means that the folder must
 * stay. */
static void wait_and_remove(const char *path, int end)
{
    enum { END = 3 };
    char keep;
    ssize_t n;
    setsid();
    signal(SIGHUP, SIG_IGN);
    dup2(end, END); /* first, since `end` is below 3 if standard input was closed */
    const int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < END; fd++)
        dup2(nothing, fd);
    close_range(END + 1, ~0U, 0);
    do
        n = read(END, &keep, 1);
    while (n < 0 && errno == EINTR);
    _exit(n == 1 || folder_remove(path) == ST_OK ? 0 : 1);
}

status dry_folder_open(const char *name, dry_folder *out)
{
    dry_folder f = {.path = ""};
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(ST_OS, "pipe: %s", strerror(errno));
    status st = make_temp_folder(name, f.path);
    if (st != ST_OK) {
        close(ends[0]);
        close(ends[1]);
        return st;
    }
    f.remover = fork();
    if (f.remover == 0) {
        close(ends[1]);
        wait_and_remove(f.path, ends[0]);
    }
    close(ends[0]);
    f.held = ends[1];
    *out = f;
    return f.remover > 0 ? ST_OK : FAIL(ST_OS, "fork: %s", strerror(errno));
}

void dry_folder_close(dry_folder *f, bool keep)
{
    const status_note note = *status_last();
    int how = 1;
    if (!f->path[0])
        return;
    if (keep && f->remover > 0 && write(f->held, "", 1) < 0)
        log_warn("%s: cannot tell the process that removes this folder to keep it: %s", f->path,
                 strerror(errno));
    close(f->held);
    if (f->remover > 0)
        while (waitpid(f->remover, &how, 0) < 0 && errno == EINTR)
            ;
    if (how != 0 && !keep && folder_remove(f->path) != ST_OK)
        log_warn("%s", status_text());
    f->path[0] = 0;
    status_set(&note);
}
