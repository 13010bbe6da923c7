/* own_files.c: the files that the daemon's children are started from, as they were at the daemon's
 * start.
 *
 * A worker of another build or with another image module would be refused, so whatever is installed
 * over a running daemon, or removed, must not reach its workers. The program is a descriptor. The
 * modules are copies in memory, since cp writes into the very file that processes have mapped. The
 * children find them as the environment variables say (prepd/worker/image_load.h); a variable that
 * is set already is left alone. The system's libraries beneath (libvips, FFmpeg) are not covered.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/proc.h"
#include "common/program/module.h"
#include "common/program/log.h"
#include "prepd/serve/shell.h"

/* Copies an open file into memory. -1 if that cannot be done here. */
static int copy_of(int from, const char *name)
{
    struct stat info;
    struct rlimit most; /* of a file; a write beyond it would end the process */
    if (fstat(from, &info) != 0 || getrlimit(RLIMIT_FSIZE, &most) != 0 ||
        (rlim_t)info.st_size > most.rlim_cur)
        return -1;
    const int to = proc_fd_above(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    off_t left = info.st_size;
    while (to >= 0 && left > 0) {
        const ssize_t sent = sendfile(to, from, NULL, (size_t)left);
        if (sent <= 0 && errno != EINTR)
            break;
        left -= sent > 0 ? sent : 0;
    }
    if (to >= 0 && left == 0 &&
        fcntl(to, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return to;
    if (to >= 0)
        close(to);
    return -1;
}

/* Opens one module. One that is missing is left to the process that needs it, which says so. */
static void open_module(own_files *files, const char *variable, const char *name)
{
    char path[PATH_MAX];
    const char *named = getenv(variable);
    if ((named && *named) || module_find(name, "module", "with prepd", path, sizeof path) != ST_OK)
        return;
    const int on_disk = proc_fd_above(open(path, O_RDONLY | O_CLOEXEC));
    if (on_disk < 0)
        return;
    const int copy = copy_of(on_disk, name);
    if (copy < 0)
        log_debug("%s is kept open, since it cannot be copied: %s", path, strerror(errno));
    else
        close(on_disk);
    const int kept = copy < 0 ? on_disk : copy;
    snprintf(path, sizeof path, "/proc/self/fd/%d", kept);
    if (setenv(variable, path, 1) == 0)
        files->module[files->n_modules++] = kept;
    else
        close(kept);
}

status own_files_open(own_files *files)
{
    TRY(proc_self_open(&files->program));
    open_module(files, "TESSERA_IMAGE_MODULE", "libprepd_image.so");
    open_module(files, "TESSERA_VIDEO_MODULE", "libprepd_video.so");
    return ST_OK;
}

void own_files_close(own_files *files)
{
    if (files->program > 0)
        close(files->program);
    for (int i = 0; i < files->n_modules; i++)
        close(files->module[i]);
    *files = (own_files){0};
}
