/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_child.c: starts, watches and stops the private daemon of a command. */
#include "prepd/cli/verbs_child.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/proc.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "proto/wire/wire.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
enum { N_SIGNALS = sizeof signals / sizeof *signals };

/* Signals go to the process as a whole, so this state is global. */
static atomic_int heard; /* the number of the first signal; 0: none came */
static client *_Atomic waits;
static bool listens;

/* Calls only what a signal handler may call: client_interrupt sets a flag. */
static void on_signal(int number)
{
    int none = 0;
    client *rows = atomic_load(&waits);
    atomic_compare_exchange_strong(&heard, &none, number);
    if (rows)
        client_interrupt(rows);
}

static void interrupt_listen(void)
{
    const struct sigaction ours = {.sa_handler = on_signal};
    for (int k = 0; k < N_SIGNALS; k++)
        if (!proc_ignores(signals[k]))
            sigaction(signals[k], &ours, NULL);
    listens = true;
}

bool interrupt_heard(void)
{
    return atomic_load(&heard) != 0;
}

/* Names the client that waits for rows; NULL before it is closed. */
static void interrupt_watch(client *rows)
{
    atomic_store(&waits, rows);
    if (rows && interrupt_heard()) /* it came before there was anything to tell */
        client_interrupt(rows);
}

/* Gives the signals their effect back. If one was heard, this logs it and does not return. */
static void interrupt_end(void)
{
    const int number = atomic_load(&heard);
    for (int k = 0; listens && k < N_SIGNALS; k++)
        if (!proc_ignores(signals[k]))
            signal(signals[k], SIG_DFL);
    listens = false;
    if (!number)
        return;
    if (number != SIGPIPE) /* whoever closed the pipe reads no more */
        log_info("stopped before the end signal=\"%s\"", strsignal(number));
    bar_clear();
    fflush(stdout);
    raise(number);
}

enum {
    MORE_ARGS = 20, /* words of the private daemon beside those of the command */
    STOP_LIMIT_MS = 6000,
    /* Silence after which the child is taken to hang. Its own limits (the time of a sample, workers
     * that cannot start) end it long before that, with a cause. */
    SILENCE_MS = 600000,
};

status child_start(const conf *options, char *const *args, int n_args, child_daemon *out)
{
    const char *tmp = getenv("TMPDIR");
    char self[STATUS_PATH_MAX];
    const char *base = tmp && tmp[0] == '/' && strlen(tmp) < STATUS_PATH_MAX - 32 ? tmp : "/tmp";
    *out = (child_daemon){0};
    interrupt_listen();
    TRY(proc_self_path(self, sizeof(self)));
    snprintf(out->folder, sizeof(out->folder), "%s/prepd-XXXXXX", base);
    if (!mkdtemp(out->folder))
        return FAIL_IN(ST_CANT_CREATE, out->folder, "cannot make a temporary folder: %s",
                       strerror(errno));
    snprintf(out->endpoint, sizeof(out->endpoint), "ipc://%s/s", out->folder);
    char **argv = calloc((size_t)n_args + MORE_ARGS, sizeof(*argv));
    if (!argv) {
        rmdir(out->folder);
        return FAIL(ST_NO_MEMORY, "no memory for a command line");
    }
    char parent[16], workers[16];
    snprintf(parent, sizeof(parent), "%d", (int)getpid());
    /* At least 0, whatever the file says: workers on other machines do not know of this daemon. */
    snprintf(workers, sizeof(workers), "%d",
             options->prepd_workers < 0 ? 0 : (int)options->prepd_workers);
    int count = 0;
    argv[count++] = self;
    argv[count++] = (char[]){"serve"};
    for (int i = 0; i < n_args; i++)
        argv[count++] = args[i];
    argv[count++] = (char[]){"--prepd.endpoint"};
    argv[count++] = out->endpoint;
    /* A command looks at the data as they are and must not end over their bad samples. */
    argv[count++] = (char[]){"--data.quarantine_limit"};
    argv[count++] = (char[]){"100"};
    /* The daemon that the file is meant for may be running and use this port. */
    argv[count++] = (char[]){"--metrics.listen"};
    argv[count++] = (char[]){""};
    argv[count++] = (char[]){"--prepd.workers"};
    argv[count++] = workers;
    argv[count++] = (char[]){"--parent"};
    argv[count++] = parent;
    argv[count++] = (char[]){"--quiet"};
    argv[count++] = (char[]){CONF_SHARED}; /* the command may read an option that serve does not */
    status st = proc_spawn(argv, &out->pid);
    free(argv);
    if (st != ST_OK) {
        out->pid = 0;
        rmdir(out->folder);
    }
    return st;
}

/* True if the child still runs; otherwise *out_wstatus is its exit status. */
static bool alive(child_daemon *child, int *out_wstatus)
{
    if (child->pid && waitpid(child->pid, out_wstatus, WNOHANG) == child->pid)
        child->pid = 0;
    return child->pid != 0;
}

/* Reduces a note that came over the stream to its cause, or to nothing if the child ended with an
 * exit code and so has printed the cause itself. */
static void leave_cause(const child_daemon *child, int wstatus, status_note *note)
{
    static const char refused[] = "refused: ";
    const size_t count = sizeof refused - 1;
    if (!child->endpoint[0] || strcmp(note->input, child->endpoint) != 0)
        return;
    snprintf(note->input, sizeof note->input, "the private daemon");
    if (WIFEXITED(wstatus) && WEXITSTATUS(wstatus)) {
        note->message[0] = 0;
    } else if (strncmp(note->message, refused, count) == 0) {
        note->input[0] = 0;
        memmove(note->message, note->message + count, strlen(note->message + count) + 1);
    }
}

/* Removes the folder and the sockets that a daemon has left which was killed. */
static void remove_folder(child_daemon *child)
{
    static const char *const sockets[] = {"", ".workers", ".control"};
    char path[STATUS_PATH_MAX + 16];
    for (size_t k = 0; child->folder[0] && k < sizeof sockets / sizeof *sockets; k++) {
        snprintf(path, sizeof path, "%s/s%s", child->folder, sockets[k]);
        unlink(path);
    }
    if (child->folder[0])
        rmdir(child->folder);
    child->folder[0] = 0;
}

void child_stop(child_daemon *child, client **rows, status_note *note)
{
    int wstatus = 0;
    interrupt_watch(NULL);
    client_close(rows);
    if (child->pid)
        kill(child->pid, interrupt_heard() ? SIGINT : SIGTERM); /* SIGINT finishes no work first */
    for (int ms = 0; alive(child, &wstatus); ms += 5) {
        if (ms > STOP_LIMIT_MS)
            kill(child->pid, SIGKILL);
        usleep(5000);
    }
    leave_cause(child, wstatus, note);
    remove_folder(child);
    interrupt_end();
}

/* A child that failed has printed the reason on stderr; its exit code becomes our status. */
static status child_failed(int wstatus)
{
    char what[96];
    for (int i = ST_OK + 1; i < ST_COUNT; i++)
        if (WIFEXITED(wstatus) && WEXITSTATUS(wstatus) &&
            status_exit_code((status)i) == WEXITSTATUS(wstatus)) {
            status_clear();
            return (status)i;
        }
    proc_end_of(wstatus, what, sizeof(what));
    return FAIL(ST_INTERNAL, "the private daemon ended by %s", what);
}

static pid_t
    waited_for; /* whose end ends the wait for WELCOME: client_options.stopped takes no context */

/* Leaves its exit status to alive(). */
static bool nothing_to_wait_for(void)
{
    siginfo_t end = {0};
    return interrupt_heard() ||
           waitid(P_PID, (id_t)waited_for, &end, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           end.si_pid != 0;
}

static status open_stream(child_daemon *child, client_options *options, client **out)
{
    const char *path = child->endpoint + strlen("ipc://");
    struct stat info;
    int wstatus = 0;
    while (stat(path, &info) != 0) {
        if (interrupt_heard())
            return FAIL(ST_STOPPED, "stopped by a signal");
        if (!alive(child, &wstatus))
            return child_failed(wstatus);
        usleep(2000);
    }
    options->endpoint = child->endpoint;
    options->ranks = 1;
    options->timeout_ms = SILENCE_MS;
    /* A daemon that ends between stat and connect leaves no connection that could break. */
    waited_for = child->pid;
    options->stopped = nothing_to_wait_for;
    status st = client_open(options, out);
    interrupt_watch(st == ST_OK ? *out : NULL);
    if (st == ST_UNAVAILABLE || st == ST_STOPPED) {
        status_note note = *status_last();
        usleep(200000); /* it may end a moment after its connection does */
        if (!alive(child, &wstatus))
            return child_failed(wstatus);
        status_set(&note);
    }
    return st;
}

status child_open(child_daemon *child, const char *stream, int64_t from_row, int64_t credit_bytes,
                  client **out)
{
    client_options options = {
        .stream = stream, .start_row = from_row, .credit_bytes = credit_bytes, .rows_later = true};
    return open_stream(child, &options, out);
}

status child_report(child_daemon *child, client **out)
{
    client_options options = {.stream = "train", .credit_bytes = 1, .report = true};
    return open_stream(child, &options, out);
}

const conf_need verb_needs_rows[] = {
    {"model.path", "model.tokenizer",
     "name a Hugging Face folder, or a preset and model.tokenizer"},
    {"data.path", NULL, "name the folder or file of the data set"},
    {0},
};

status verb_conf(int argc, char **argv, const conf_need *needs, conf *options, char ***out_args,
                 int *out_n_args)
{
    char **args = calloc((size_t)argc + 1, sizeof(*args));
    if (!args)
        return FAIL(ST_NO_MEMORY, "no memory for a command line");
    memcpy(args, argv + 1, (size_t)(argc - 1) * sizeof(*args));
    const int count = argc - 1;
    status st = verb_load_last(options, &argc, argv, needs);
    if (st != ST_OK) {
        free(args);
        return st;
    }
    *out_args = args;
    *out_n_args = count;
    log_init("prepd", options->log_level, options->log_json);
    return ST_OK;
}

status verb_endpoint(const char *text)
{
    char *reachable = NULL;
    const status st = wire_reachable(text, &reachable);
    free(reachable);
    return st == ST_CONFIG ? FAIL(ST_USAGE, "--connect: %s", status_text()) : st;
}
