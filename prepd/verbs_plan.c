/* verbs_plan.c: what the stream will look like; nothing is decoded but headers, for the index. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "prepd/dataset/dataset.h"
#include "prepd/plan/index.h"
#include "prepd/plan/plan.h"
#include "prepd/verbs.h"
#include "prepd/verbs_child.h"

/* The index as the private daemon's workers built it, by way of its cache file. */
static status fetch_index(const conf *c, char *const *args, int n_args, data_index **out)
{
    child_daemon daemon = {0};
    client *rows = NULL;
    json_value *welcome = NULL;
    const char *path, *key_text;
    hash128 key;
    status st = ST_OK;
    TRY(child_start(c, args, n_args, &daemon));
    /* From past the last row on: WELCOME names the index, and nothing is decoded. */
    TRY_OR(done, child_open(&daemon, "sample", INT64_MAX, 1, &rows));
    TRY_OR(done,
           json_parse(client_welcome(rows), strlen(client_welcome(rows)), "welcome", &welcome));
    TRY_OR(done, json_want_text(welcome, "index_file", "welcome", &path));
    if (!path[0]) {
        st = FAIL(ST_CANT_CREATE, "plan reads the index that is kept, and there is no folder for "
                                  "one (see above): set prepd.cache_dir");
        goto done;
    }
    TRY_OR(done, json_want_text(welcome, "index_key", "welcome", &key_text));
    if (!hash_parse(key_text, &key)) {
        st = FAIL(ST_PROTOCOL, "index_key \"%s\" is not 32 hex digits", key_text);
        goto done;
    }
    TRY_OR(done, index_load(path, key, out));
done:;
    status_note note = *status_last();
    json_free(&welcome);
    client_close(&rows);
    child_stop(&daemon, &note);
    status_set(&note);
    return st;
}

status verb_plan(int argc, char **argv)
{
    conf c;
    char **args;
    int n_args;
    dataset *d = NULL;
    data_index *x = NULL;
    plan *p = NULL;
    status st = ST_OK;
    TRY(verb_conf(argc, argv, &c, &args, &n_args));
    TRY_OR(done, fetch_index(&c, args, n_args, &x));
    TRY_OR(done, dataset_open(&c, &d));
    const int64_t started_ns = clock_ns();
    TRY_OR(done, plan_new(&c, d, x, PLAN_PACKED, &p));
    const double seconds = (double)(clock_ns() - started_ns) / 1e9;
    TRY_OR(done, plan_report(p, stdout));
    printf("planning: %.2f s for epoch 0, %.2f us a sample\n", seconds,
           1e6 * seconds / (double)d->v->samples(d));
done:
    plan_free(&p);
    dataset_close(&d);
    index_free(&x);
    free(args);
    conf_done(&c);
    return st;
}
