/* SPDX-License-Identifier: Apache-2.0 */
/* system_calls.c: fills the core's table of what it may ask of the world (core/state/outside.h). */
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
#include "common/program/log.h"
#include "common/program/module.h"
#include "prepd/dataset/dataset.h"
#include "prepd/serve/shell.h"

static status send_message(void *user, door at, const wire_peer *to, wire_msg *message)
{
    const shell *around = (const shell *)user;
    return wire_send(around->socket[at], to, message);
}

static void know_worker(void *user, const wire_peer *worker)
{
    const shell *around = (const shell *)user;
    wire_know(around->socket[DOOR_WORKERS], worker);
}

static void peer_host(void *user, const wire_peer *peer, char out[WIRE_HOST_TEXT])
{
    (void)user;
    wire_peer_host(peer, out);
}

static status call_start_worker(void *user, char out_ticket[TICKET_TEXT], pid_t *out_pid)
{
    return start_worker((shell *)user, out_ticket, out_pid);
}

static status call_start_prints(void *user, const char *only, pid_t *out_pid)
{
    return start_fingerprinting((shell *)user, only, out_pid);
}

static void call_end_process(void *user, pid_t pid, bool at_once)
{
    end_process((shell *)user, pid, at_once);
}

static status want_section(void *user, source *section)
{
    return source_want((shell *)user, section);
}

static void close_section(void *user, source *section)
{
    (void)user;
    source_done(section);
}

static void keep_index(void *user, source *section)
{
    (void)user;
    source_keep_index(section);
}

static void stat_image(void *user, const source *section, int64_t image, int64_t *out_bytes,
                       int64_t *out_mtime_ns)
{
    (void)user;
    dataset_image_stat(section->data, image, out_bytes, out_mtime_ns);
}

static sight look_at(void *user, const source *section, const char *file, int64_t *out_size)
{
    char path[PATH_MAX];
    struct stat info;
    (void)user;
    snprintf(path, sizeof(path), "%s/%s", section->data->adapter->root(section->data), file);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return file_error_is_its_own(errno) ? SIGHT_GONE : SIGHT_TROUBLE;
    *out_size = fstat(fd, &info) == 0 ? (int64_t)info.st_size : 0;
    close(fd);
    return SIGHT_THERE;
}

static status call_ship_file(void *user, const source *section, int64_t image,
                             const image_place *place, const int64_t *index, int64_t count,
                             wire_msg *parts, json_writer *out)
{
    (void)user;
    return ship_file(section->data, image, place, index, count, &section->options, parts, out);
}

static int64_t memory_bytes(void *user)
{
    (void)user;
    return proc_rss_bytes();
}

static bool is_logged(void *user, int level)
{
    (void)user;
    return log_on(level);
}

static void write_log(void *user, int level, const char *line)
{
    (void)user;
    log_event(level, "%s", line);
}

outside shell_outside(shell *around)
{
    return (outside){
        .shell = around,
        .send = send_message,
        .know_worker = know_worker,
        .peer_host = peer_host,
        .start_worker = call_start_worker,
        .start_fingerprinting = call_start_prints,
        .end_process = call_end_process,
        .want_section = want_section,
        .close_section = close_section,
        .keep_index = keep_index,
        .stat_image = stat_image,
        .look_at = look_at,
        .ship_file = call_ship_file,
        .memory_bytes = memory_bytes,
        .logs = is_logged,
        .log = write_log,
    };
}

/* The files that the daemon's children are started from, as they were at the daemon's
 * start.
 *
 * A worker of another build or with another image module would be refused, so whatever is installed
 * over a running daemon, or removed, must not reach its workers. The program is a descriptor. The
 * modules are copies in memory, since cp writes into the very file that processes have mapped. The
 * children find them as the environment variables say (prepd/worker/media/image_load.h); a variable
 * that is set already is left alone. The system's libraries beneath (libvips, FFmpeg) are not
 * covered.
 */

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
