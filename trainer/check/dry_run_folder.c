/* dry_run_folder.c: forks the process that removes the folder, and makes the folder once that
 * process is there, so that no signal can come in between and leave it behind. */
#include "trainer/check/dry_run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/program/log.h"
#include "trainer/checkpoint/save/folder.h"

/* name NULL: one that nobody else has. */
static status choose_path(const char *name, char out[STATUS_PATH_MAX])
{
    const char *temp = getenv("TMPDIR");
    uint64_t drawn[2];
    char own[2 * sizeof drawn + 1];
    if (!name && getrandom(drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
        return FAIL(ST_OS, "getrandom: %s", strerror(errno));
    if (!name)
        snprintf(own, sizeof own, "%016" PRIx64 "%016" PRIx64, drawn[0], drawn[1]);
    if (snprintf(out, STATUS_PATH_MAX, "%s/dry-run-%s", temp && *temp ? temp : "/tmp",
                 name ? name : own) >= STATUS_PATH_MAX)
        return FAIL(ST_CANT_CREATE, "the path of TMPDIR is too long for a dry run's folder");
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
    ssize_t got;
    setsid();
    signal(SIGHUP, SIG_IGN);
    dup2(end, END); /* first, since `end` is below 3 if standard input was closed */
    const int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < END; fd++)
        dup2(nothing, fd);
    close_range(END + 1, ~0U, 0);
    do
        got = read(END, &keep, 1);
    while (got < 0 && errno == EINTR);
    _exit(got == 1 || folder_remove(path) == ST_OK ? 0 : 1);
}

status dry_folder_open(const char *name, dry_folder *out)
{
    dry_folder folder = {.path = ""};
    int ends[2];
    TRY(choose_path(name, folder.path));
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(ST_OS, "pipe: %s", strerror(errno));
    folder.remover = fork();
    if (folder.remover == 0) {
        close(ends[1]);
        wait_and_remove(folder.path, ends[0]);
    }
    close(ends[0]);
    folder.held = ends[1];
    status st = ST_OK;
    if (folder.remover < 0)
        st = FAIL(ST_OS, "fork: %s", strerror(errno));
    else if (mkdir(folder.path, 0700) != 0 && !(name && errno == EEXIST))
        st = FAIL_IN(ST_CANT_CREATE, folder.path, "%s", strerror(errno));
    if (st != ST_OK)
        dry_folder_close(&folder, true); /* there is none of its own to remove */
    *out = folder;
    return st;
}

void dry_folder_close(dry_folder *folder, bool keep)
{
    const status_note note = *status_last();
    int how = 1;
    if (!folder->path[0])
        return;
    if (keep && folder->remover > 0 && write(folder->held, "", 1) < 0)
        log_warn("%s: cannot tell the process that removes this folder to keep it: %s",
                 folder->path, strerror(errno));
    close(folder->held);
    if (folder->remover > 0)
        while (waitpid(folder->remover, &how, 0) < 0 && errno == EINTR)
            ;
    if (how != 0 && !keep && folder_remove(folder->path) != ST_OK)
        log_warn("%s", status_text());
    folder->path[0] = 0;
    status_set(&note);
}
