/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_serve.c: `prepd serve` and `prepd worker`. The latter is a supervisor when a user starts
 * it, and a worker when a supervisor or daemon does (--parent). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/program/bar.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "prepd/serve/daemon.h"
#include "prepd/cli/verbs.h"
#include "prepd/cli/verbs_child.h"
#include "prepd/worker/worker.h"
#include "proto/wire/wire.h"

static status take_parent(int *argc, char **argv, int64_t *out)
{
    const char *parent;
    *out = 0;
    TRY(verb_take(argc, argv, "--parent", &parent));
    return parent ? verb_number("--parent", parent, 1, INT32_MAX, out) : ST_OK;
}

/* Removes the folder of a command's private daemon,
 * since the command itself may have been killed. */
static void remove_private_folder(const char *endpoint)
{
    const char *path = endpoint + strlen("ipc://");
    const char *slash = strrchr(path, '/');
    char folder[STATUS_PATH_MAX];
    if (!wire_is_ipc(endpoint) || !slash || slash == path || slash - path >= STATUS_PATH_MAX)
        return;
    snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path), path);
    rmdir(folder); /* the daemon has removed its sockets; a folder with more in it stays */
}

status verb_serve(int argc, char **argv)
{
    conf options;
    char **args;
    int n_args;
    int64_t parent;
    const bool quiet = verb_take_flag(&argc, argv, "--quiet");
    TRY(take_parent(&argc, argv, &parent));
    TRY(verb_conf(argc, argv, verb_needs_rows, &options, &args, &n_args));
    signal(SIGPIPE, SIG_IGN); /* the reader of our log may leave */
    log_init("prepd", quiet && options.log_level > LOG_WARN ? LOG_WARN : options.log_level,
             options.log_json);
    bar_set_rule(quiet ? BAR_NEVER : BAR_FOREGROUND);
    status st = parent ? proc_follow_parent((pid_t)parent, SIGTERM) : ST_OK;
    if (st == ST_OK)
        st = daemon_run(&options, args, n_args, parent > 0);
    if (parent)
        remove_private_folder(options.prepd_endpoint);
    free(args);
    conf_done(&options);
    return st;
}

/* Runs a supervisor. Its workers get the words that it was given, without --workers. */
static status keep_workers(const worker_options *asked, int64_t count)
{
    char self[STATUS_PATH_MAX];
    char *args[16];
    int n_args = 0;
    const struct {
        const char *flag, *value;
    } options[] = {{"--connect", asked->endpoint},
                   {"--keys", asked->keys},
                   {"--data-root", asked->data_root},
                   {"--model", asked->model}};
    TRY(proc_self_path(self, sizeof(self)));
    args[n_args++] = self;
    args[n_args++] = (char[]){"worker"};
    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++) {
        if (!options[i].value)
            continue;
        args[n_args++] = (char *)(uintptr_t)options[i].flag; /* proc_spawn only reads them */
        args[n_args++] = (char *)(uintptr_t)options[i].value;
    }
    return supervisor_run(args, n_args, (int)count, asked->endpoint, asked->keys);
}

static status run_worker(const worker_options *options)
{
    int code = 0;
    const status st = worker_run(options, &code);
    if (st == ST_MISMATCH && options->supervisor) { /* the only end that is one for good */
        log_status();
        code = PROC_EXIT_DIFFERS;
    } else {
        TRY(st);
    }
    if (code)
        exit(code);
    return ST_OK;
}

status verb_worker(int argc, char **argv)
{
    worker_options options = {.program = argv[-1]};
    const char *workers;
    int64_t parent, count = 1;
    TRY(take_parent(&argc, argv, &parent));
    options.heard = verb_take_flag(
        &argc, argv, "--heard"); /* only a supervisor passes this, as --parent and --supervisor */
    TRY(verb_take(&argc, argv, "--connect", &options.endpoint));
    TRY(verb_take(&argc, argv, "--data-root", &options.data_root));
    TRY(verb_take(&argc, argv, "--model", &options.model));
    TRY(verb_take(&argc, argv, "--keys", &options.keys));
    TRY(verb_take(&argc, argv, "--supervisor", &options.supervisor));
    TRY(verb_take(&argc, argv, "--workers", &workers));
    if (workers)
        TRY(verb_number("--workers", workers, 1, 1024, &count));
    options.parent = (pid_t)parent;
    TRY(verb_all_taken(argc, argv));
    if (!options.endpoint)
        return FAIL(ST_USAGE, "worker needs --connect ENDPOINT: the daemon's prepd.endpoint with "
                              ".workers appended (tcp: the next port)");
    TRY(verb_endpoint(options.endpoint));
    if (options.data_root && access(options.data_root, R_OK | X_OK) != 0)
        return FAIL_IN(ST_NO_INPUT, options.data_root, "--data-root cannot be read: %s",
                       strerror(errno));
    return options.parent ? run_worker(&options) : keep_workers(&options, count);
}
