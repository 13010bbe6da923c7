/* reload.c: SIGHUP. The configuration is read again. Options that do not touch the stream take
 * effect; those that would are named and stay as they are. An invalid file changes nothing. */
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "prepd/serve/notify.h"
#include "prepd/serve/dispatch_state.h"

/* Options that a running daemon may change. Workers learn of them by new TERMS, for which they
 * start anew between two leases. To add one, also copy it in apply_options. */
static const char *const changeable[] = {
    "prepd.workers",      "prepd.sample_timeout", "prepd.solo_deaths",
    "prepd.buffer_bytes", "prepd.worker_bytes",   "data.quarantine_limit",
    "log.level",          "prepd.mixed_workers",  "prepd.mixed_resume"};

static bool is_changeable(const char *key)
{
    for (size_t i = 0; i < sizeof(changeable) / sizeof(*changeable); i++)
        if (strcmp(changeable[i], key) == 0)
            return true;
    return false;
}

static char *print_options(const conf *options)
{
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return NULL;
    conf_print(options, file);
    if (fclose(file) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* Calls `change` for every option that differs between two texts of lines "key: value". Both have
 * the same keys in the same order. */
typedef void (*on_change)(dispatch *state, const char *key, const char *value);

static void compare_options(dispatch *state, char *was, char *is, on_change change)
{
    char *save_was, *save_is;
    char *old_line = strtok_r(was, "\n", &save_was), *new_line = strtok_r(is, "\n", &save_is);
    for (; old_line && new_line;
         old_line = strtok_r(NULL, "\n", &save_was), new_line = strtok_r(NULL, "\n", &save_is)) {
        char *colon = strchr(new_line, ':');
        if (new_line[0] == '#' || !colon || strcmp(old_line, new_line) == 0)
            continue;
        *colon = 0;
        change(state, new_line, colon + 1 + strspn(colon + 1, " "));
    }
}

static void report_change(dispatch *state, const char *key, const char *value)
{
    if (is_changeable(key)) {
        log_info("reloaded %s=%s", key, value);
        state->reloaded++;
    } else {
        log_warn("not reloaded: %s stays as it is until the daemon is restarted", key);
    }
}

static void apply_options(dispatch *state, const conf *now)
{
    conf *options = state->options;
    const bool new_terms = options->prepd_sample_timeout != now->prepd_sample_timeout ||
                           options->prepd_worker_bytes != now->prepd_worker_bytes;
    options->prepd_sample_timeout = now->prepd_sample_timeout;
    options->prepd_solo_deaths = now->prepd_solo_deaths;
    options->prepd_buffer_bytes = now->prepd_buffer_bytes;
    options->prepd_worker_bytes = now->prepd_worker_bytes;
    options->prepd_mixed_workers = now->prepd_mixed_workers;
    options->prepd_mixed_resume = now->prepd_mixed_resume;
    options->data_quarantine_limit = now->data_quarantine_limit;
    options->log_level = now->log_level;
    state->book.solo_limit = (int)now->prepd_solo_deaths;
    log_set_level((int)options->log_level);
    if (options->prepd_workers != now->prepd_workers) {
        options->prepd_workers = now->prepd_workers;
        local_scale(state, local_wanted(options));
    }
    if (new_terms && dispatch_new_terms(state) != ST_OK)
        log_warn("workers keep the limits they had: %s", status_text());
}

static status read_again(dispatch *state, conf *out)
{
    char **argv = calloc((size_t)state->n_args + 2, sizeof(*argv));
    int argc = state->n_args + 1;
    if (!argv)
        return FAIL(ST_NO_MEMORY, "no memory for a command line");
    argv[0] = (char[]){"serve"};
    memcpy(argv + 1, state->args, (size_t)state->n_args * sizeof(*argv));
    status st = conf_load(out, &argc, argv);
    free(argv);
    return st;
}

void dispatch_reload(dispatch *state)
{
    conf now;
    notify_reloading();
    if (read_again(state, &now) != ST_OK) {
        log_warn("not reloaded, and nothing changes: %s", status_text());
    } else {
        char *was = print_options(state->options), *is = print_options(&now);
        state->reloaded = 0;
        if (was && is)
            compare_options(state, was, is, report_change);
        apply_options(state, &now);
        log_info("reloaded options=%d", state->reloaded);
        free(was);
        free(is);
        conf_done(&now);
    }
    if (wire_reload_keys(state->net) != ST_OK)
        log_warn("keys not reloaded, and the old ones stay in force: %s", status_text());
    notify_send("READY=1\n");
}
