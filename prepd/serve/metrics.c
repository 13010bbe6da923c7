/* metrics.c: the daemon's figures for Prometheus (text exposition format, base units, no sample
 * ids), and the answers to a service manager's two questions: /healthz (does the loop turn, and
 * does work come back?) and /readyz (would a consumer get rows now?).
 *
 * To add a metric, write it in put_work, put_streams or put_all, and add it to
 * deploy/grafana-prepd.json if people should see it. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/proc.h"
#include "prepd/serve/shell.h"

typedef struct put {
    FILE *file;
} put;

static void family(const put *text, const char *name, const char *type, const char *help)
{
    fprintf(text->file, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void one(const put *text, const char *name, const char *type, const char *help, double value)
{
    family(text, name, type, help);
    fprintf(text->file, "%s %.17g\n", name, value);
}

static void labelled(const put *text, const char *name, const char *label, const char *is,
                     double value)
{
    fprintf(text->file, "%s{%s=\"%s\"} %.17g\n", name, label, is, value);
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count > 3 ? count - 3 : 0; /* without ".", ".." and this directory itself */
}

static void put_work(const put *text, const dispatch *state, int64_t now)
{
    int busy = 0, joined = 0;
    int64_t oldest = 0;
    for (const worker_seat *worker = state->seats; worker; worker = worker->next) {
        joined++;
        busy += worker->work != NULL;
        if (worker->work && now - worker->since_ns > oldest)
            oldest = now - worker->since_ns;
    }
    family(text, "prepd_workers", "gauge", "worker processes by state");
    labelled(text, "prepd_workers", "state", "busy", busy);
    labelled(text, "prepd_workers", "state", "idle", joined - busy);
    one(text, "prepd_workers_wanted", "gauge", "local workers asked for", state->local.target);
    one(text, "prepd_worker_restarts_total", "counter", "local workers replaced",
        (double)state->local.respawned);
    one(text, "prepd_lease_age_seconds", "gauge", "longest time a worker is on its present item",
        (double)oldest / 1e9);
    one(text, "prepd_leases_waiting", "gauge", "lost leases to be given again",
        (double)lease_book_waiting(&state->book));
    family(text, "prepd_leases_lost_total", "counter", "leases whose worker went, by cause");
    labelled(text, "prepd_leases_lost_total", "reason", "crash", (double)state->counts.crashes);
    labelled(text, "prepd_leases_lost_total", "reason", "timeout", (double)state->counts.timeouts);
    labelled(text, "prepd_leases_lost_total", "reason", "outside", (double)state->counts.outside);
    labelled(text, "prepd_leases_lost_total", "reason", "breach", (double)state->counts.breaches);
    family(text, "prepd_audited_rows_total", "counter",
           "rows drawn to be made by two workers (prepd.audit), by outcome");
    labelled(text, "prepd_audited_rows_total", "outcome", "alike", (double)state->counts.audited);
    labelled(text, "prepd_audited_rows_total", "outcome", "alone", (double)state->counts.unaudited);
    one(text, "prepd_audit_deviants_total", "counter",
        "workers that made another row than two others", (double)state->counts.deviants);
    family(text, "prepd_stage_seconds_total", "counter", "time of all workers by stage of a row");
    for (int i = 0; i < N_STAGES; i++)
        labelled(text, "prepd_stage_seconds_total", "stage", stage_names[i],
                 (double)state->counts.stage_ns[i] / 1e9);
}

static void put_streams(const put *text, const dispatch *state)
{
    int64_t credit = 0, reserved = 0, unreturned = 0, slots = 0;
    for (const consumer_seat *consumer = state->consumer_seats; consumer;
         consumer = consumer->next) {
        credit += consumer->credit;
        reserved += consumer->reserved;
        unreturned += consumer->unreturned;
        slots += consumer->n_slots;
    }
    one(text, "prepd_consumers", "gauge", "connected consumers", state->n_consumers);
    one(text, "prepd_credit_bytes", "gauge", "credit left, all consumers", (double)credit);
    family(text, "prepd_queue_bytes", "gauge", "bytes of rows under way by place");
    labelled(text, "prepd_queue_bytes", "place", "reserved", (double)reserved);
    labelled(text, "prepd_queue_bytes", "place", "sent", (double)unreturned);
    one(text, "prepd_queue_rows", "gauge", "rows between lease and sending", (double)slots);
    family(text, "prepd_quarantined", "gauge", "samples in quarantine by data section");
    labelled(text, "prepd_quarantined", "section", "train", (double)state->train.bad.n_entries);
    labelled(text, "prepd_quarantined", "section", "eval", (double)state->eval.bad.n_entries);
    family(text, "prepd_damaged", "gauge",
           "pictures that decoded with a warning that their file is damaged, by data section");
    labelled(text, "prepd_damaged", "section", "train", (double)state->train.damaged.n_entries);
    labelled(text, "prepd_damaged", "section", "eval", (double)state->eval.damaged.n_entries);
    family(text, "prepd_index_records_left", "gauge", "index records still to be made");
    labelled(text, "prepd_index_records_left", "section", "train",
             state->train.build.active ? (double)state->train.build.left : 0);
    labelled(text, "prepd_index_records_left", "section", "eval",
             state->eval.build.active ? (double)state->eval.build.left : 0);
}

static void put_all(const put *text, const dispatch *state)
{
    const serve_counts *counts = &state->counts;
    const int64_t now = clock_ns();
    family(text, "prepd_build_info", "gauge", "1, with the version");
    labelled(text, "prepd_build_info", "version", TESSERA_VERSION, 1);
    one(text, "prepd_uptime_seconds", "gauge", "since the daemon began",
        (double)(now - state->started_ns) / 1e9);
    one(text, "prepd_rows_total", "counter", "rows sent", (double)counts->rows);
    one(text, "prepd_samples_total", "counter", "samples sent", (double)counts->samples);
    one(text, "prepd_sent_bytes_total", "counter", "bytes of rows sent", (double)counts->bytes);
    family(text, "prepd_cache_total", "counter", "pictures looked for in the cache, by outcome");
    labelled(text, "prepd_cache_total", "outcome", "hit", (double)counts->cached[0]);
    labelled(text, "prepd_cache_total", "outcome", "miss", (double)counts->cached[1]);
    one(text, "prepd_shipped_bytes_total", "counter", "bytes of files sent with leases (data.ship)",
        (double)counts->shipped);
    one(text, "prepd_quarantined_total", "counter", "samples put in quarantine by this run",
        (double)counts->quarantined);
    one(text, "prepd_refused_messages_total", "counter", "messages that broke the protocol",
        (double)state->peer_limits.refused);
    one(text, "prepd_refused_keys_total", "counter", "connections with an unknown key",
        (double)state->peer_limits.refused_keys);
    put_work(text, state, now);
    put_streams(text, state);
    one(text, "process_resident_memory_bytes", "gauge", "of the dispatcher",
        (double)proc_rss_bytes());
    one(text, "process_open_fds", "gauge", "of the dispatcher", open_descriptors());
}

/* The daemon is healthy if work that is out makes progress and comes back; otherwise the loop turns
 * and nothing happens. */
const char *metrics_unhealthy(const dispatch *state, int64_t now)
{
    const double patience = 4 * state->options->prepd_sample_timeout + 30;
    bool out = false;
    for (const worker_seat *worker = state->seats; worker && !out; worker = worker->next)
        out = worker->work != NULL;
    if (out && (double)(now - state->answered_ns) / 1e9 > patience)
        return "leases are out, and for several times prepd.sample_timeout none has made progress "
               "or come back";
    if (state->stopping)
        return "stopping";
    return NULL;
}

const char *metrics_unready(const dispatch *state)
{
    if (state->stopping || state->draining)
        return "leaving";
    if (!state->train.ready)
        return state->train.waits_for ? "another prepd builds the index"
                                      : "the index is being built";
    return state->seats ? NULL : "no worker has joined";
}

/* What a browser shows of the bare address. The rest of the daemon is on its control endpoint. */
static const char index_page[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>prepd</title>"
    "<meta name=\"viewport\" content=\"width=device-width\">"
    "<style>:root{color-scheme:light dark}body{font:16px/1.6 system-ui,sans-serif;margin:2em}"
    "</style></head><body>\n<h1>prepd " TESSERA_VERSION "</h1>\n<ul>\n"
    "<li><a href=\"/metrics\">/metrics</a>: figures for Prometheus</li>\n"
    "<li><a href=\"/healthz\">/healthz</a>: does work go on?</li>\n"
    "<li><a href=\"/readyz\">/readyz</a>: would a consumer get rows now?</li>\n"
    "</ul>\n<p>The command <code>prepd status</code> says more.</p>\n</body></html>\n";

int metrics_answer(void *user, const char *path, FILE *out, const char **out_type)
{
    const dispatch *state = user;
    const put text = {out};
    const char *why = NULL;
    if (strcmp(path, "/") == 0) {
        *out_type = "text/html; charset=utf-8";
        fputs(index_page, out);
        return 200;
    }
    if (strcmp(path, "/metrics") == 0) {
        put_all(&text, state);
        return 200;
    }
    if (strcmp(path, "/healthz") == 0)
        why = metrics_unhealthy(state, clock_ns());
    else if (strcmp(path, "/readyz") == 0)
        why = metrics_unready(state);
    else {
        fprintf(out, "not found; there are /metrics /healthz /readyz\n");
        return 404;
    }
    fprintf(out, "%s\n", why ? why : "ok");
    return why ? 503 : 200;
}
