/* verbs_plan.c: `prepd plan`, which shows what the stream will look like. Only image headers are
 * decoded, for the index. A private daemon, which has the index and the plan, writes the report. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "prepd/cli/verbs.h"
#include "prepd/cli/verbs_child.h"

static status print_report(const char *welcome)
{
    json_value *value = NULL;
    const char *report;
    int64_t samples, planning_ns;
    TRY(json_parse(welcome, strlen(welcome), "welcome", &value));
    status st = json_want_text(value, "report", "welcome", &report);
    if (st == ST_OK)
        st = json_want_int(value, "samples", "welcome", &samples);
    if (st == ST_OK)
        st = json_want_int(value, "planning_ns", "welcome", &planning_ns);
    if (st == ST_OK)
        printf("%splanning: %.2f s of CPU time for epoch 0, %.2f us a sample\n", report,
               (double)planning_ns / 1e9,
               (double)planning_ns / 1e3 / (samples ? (double)samples : 1));
    json_free(&value);
    return st;
}

status verb_plan(int argc, char **argv)
{
    conf options;
    char **args;
    int n_args;
    child_daemon daemon = {0};
    client *stream = NULL;
    TRY(verb_conf(argc, argv, verb_needs_rows, &options, &args, &n_args));
    status st = child_start(&options, args, n_args, &daemon);
    if (st == ST_OK) {
        st = child_report(&daemon, &stream);
        if (st == ST_OK)
            st = print_report(client_welcome(stream));
        status_note note = *status_last();
        child_stop(&daemon, &stream, &note);
        status_set(&note);
    }
    free(args);
    conf_done(&options);
    return st;
}
