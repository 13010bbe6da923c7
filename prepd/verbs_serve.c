/* verbs_serve.c: the command lines of serve and worker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/proc.h"
#include "prepd/serve/dispatch.h"
#include "prepd/verbs.h"
#include "prepd/verbs_child.h"
#include "prepd/worker/worker.h"
#include "proto/wire.h"

static status take_parent(int *argc, char **argv, int64_t *out)
{
    const char *parent;
    *out = 0;
    TRY(verb_take(argc, argv, "--parent", &parent));
    return parent ? verb_number("--parent", parent, 1, INT32_MAX, out) : ST_OK;
}

/* A command's private daemon lies in a folder of its own; if the command was killed, nobody else
 * removes it. */
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
    conf c;
    char **args;
    int n_args;
    int64_t parent;
    const bool quiet = verb_take_flag(&argc, argv, "--quiet");
    TRY(take_parent(&argc, argv, &parent));
    TRY(verb_conf(argc, argv, &c, &args, &n_args));
    log_init("prepd", quiet && c.log_level > LOG_WARN ? LOG_WARN : c.log_level, c.log_json);
    status st = parent ? proc_follow_parent((pid_t)parent) : ST_OK;
    if (st == ST_OK)
        st = dispatch_run(&c, quiet);
    if (parent)
        remove_private_folder(c.prepd_endpoint);
    free(args);
    conf_done(&c);
    return st;
}

status verb_worker(int argc, char **argv)
{
    worker_options o = {0};
    int64_t parent;
    char **again = calloc((size_t)argc + 2, sizeof(*again));
    if (!again)
        return FAIL(ST_NO_MEMORY, "no memory for a command line");
    again[0] = argv[-1]; /* the program's name before the verb */
    for (int i = 0; i < argc; i++)
        again[i + 1] = argv[i];
    o.argv = again;
    status st = ST_OK;
    TRY_OR(done, take_parent(&argc, argv, &parent));
    TRY_OR(done, verb_take(&argc, argv, "--connect", &o.endpoint));
    TRY_OR(done, verb_take(&argc, argv, "--data-root", &o.data_root));
    TRY_OR(done, verb_take(&argc, argv, "--model", &o.model));
    o.parent = (pid_t)parent;
    if (argc > 1)
        st = FAIL(ST_USAGE, "worker: unexpected \"%s\"; see prepd worker --help", argv[1]);
    else if (!o.endpoint)
        st = FAIL(ST_USAGE, "worker: --connect ENDPOINT is needed (the daemon's prepd.endpoint "
                            "with .workers appended; tcp: the next port)");
    else if (!o.data_root && !o.parent)
        st = FAIL(ST_USAGE, "worker: --data-root DIR is needed: where the images lie here");
    else
        st = worker_run(&o);
done:
    free(again);
    return st;
}
