/* SPDX-License-Identifier: Apache-2.0 */
/* processes.c: the daemon's child processes: workers, and the one that makes fingerprints. They are
 * started by exec, so that the daemon never forks into image code. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/proc.h"
#include "common/model_folder/model_files.h"
#include "prepd/serve/shell.h"

enum { PID_TEXT = 16 };

/* A child that runs the daemon's own program and has its modules. */
static proc_child child_of(const shell *around, char *const *argv, const char *input)
{
    return (proc_child){.argv = argv,
                        .program = around->files.program,
                        .input = input,
                        .kept = around->files.module,
                        .n_kept = around->files.n_modules};
}

status start_worker(shell *around, char out_ticket[TICKET_TEXT], pid_t *out_pid)
{
    char ticket[TICKET_TEXT], input[TICKET_TEXT + 1];
    const char *keys = wire_is_ipc(around->local_endpoint) ? "" : around->options->prepd_keys;
    char parent[PID_TEXT];
    snprintf(parent, sizeof(parent), "%d", (int)getpid());
    char *argv[] = {around->self,
                    (char[]){"worker"},
                    (char[]){"--connect"},
                    around->local_endpoint,
                    (char[]){"--parent"},
                    parent,
                    keys[0] ? (char[]){"--keys"} : NULL,
                    (char *)(uintptr_t)keys,
                    NULL};
    TRY(ticket_draw(ticket));
    snprintf(input, sizeof input, "%s\n", ticket);
    const proc_child child = child_of(around, argv, input);
    const status st = proc_spawn_child(&child, out_pid);
    if (st == ST_OK)
        memcpy(out_ticket, ticket, sizeof ticket);
    explicit_bzero(ticket, sizeof ticket);
    explicit_bzero(input, sizeof input);
    return st;
}

status start_fingerprinting(shell *around, const char *only, pid_t *out_pid)
{
    fingerprint_pipe *pipe = &around->pipe;
    char parent[PID_TEXT];
    const char *folder;
    TRY(model_files_folder(around->options, &folder));
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    char *argv[] = {around->self,
                    (char[]){"fingerprint"},
                    (char[]){"--parent"},
                    parent,
                    (char[]){"--only"},
                    (char *)(uintptr_t)only,
                    (char[]){"--model"},
                    (char *)(uintptr_t)folder,
                    NULL};
    pipe->text_bytes = 0;
    const proc_child child = child_of(around, argv, NULL);
    TRY(proc_spawn_reading(&child, &pipe->pid, &pipe->fd));
    *out_pid = pipe->pid;
    return ST_OK;
}

void end_process(shell *around, pid_t pid, bool at_once)
{
    (void)around;
    kill(pid, at_once ? SIGKILL : SIGTERM);
}

static child_end end_of(int wstatus)
{
    child_end end = {.code = WIFEXITED(wstatus) ? WEXITSTATUS(wstatus) : -1};
    end.how = proc_end_of(wstatus, end.what, sizeof(end.what));
    return end;
}

void processes_reap(shell *around)
{
    int wstatus;
    pid_t pid;
    while ((pid = waitpid(-1, &wstatus, WNOHANG | WUNTRACED)) > 0) {
        dispatch_at(around->core, clock_ns());
        if (WIFSTOPPED(wstatus)) {
            child_paused(around->core, pid);
            continue;
        }
        const child_end end = end_of(wstatus);
        child_ended(around->core, pid, &end);
    }
}

static void take_lines(shell *around)
{
    fingerprint_pipe *pipe = &around->pipe;
    char *end;
    while ((end = memchr(pipe->text, '\n', pipe->text_bytes))) {
        const size_t used = (size_t)(end - pipe->text) + 1;
        *end = 0;
        fingerprinting_line(around->core, pipe->text);
        pipe->text_bytes -= used;
        memmove(pipe->text, pipe->text + used, pipe->text_bytes);
    }
    if (pipe->text_bytes == sizeof pipe->text)
        pipe->text_bytes = 0; /* no line with a fingerprint is this long */
}

void fingerprint_pipe_read(shell *around)
{
    fingerprint_pipe *pipe = &around->pipe;
    ssize_t got = -1;
    while (pipe->pid && (got = read(pipe->fd, pipe->text + pipe->text_bytes,
                                    sizeof pipe->text - pipe->text_bytes)) > 0) {
        pipe->text_bytes += (size_t)got;
        dispatch_at(around->core, clock_ns());
        take_lines(around);
    }
    if (!pipe->pid || (got != 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    close(pipe->fd); /* the loop reaps the process together with the workers */
    pipe->pid = 0;
    fingerprinting_ended(around->core);
}

void fingerprint_pipe_forget(shell *around)
{
    if (!around->pipe.pid)
        return;
    (void)waitpid(around->pipe.pid, NULL, 0); /* it may have been reaped already */
    close(around->pipe.fd);
    around->pipe.pid = 0;
}
