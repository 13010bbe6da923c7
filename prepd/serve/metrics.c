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
#include "prepd/serve/dispatch_state.h"

typedef struct put {
    FILE *file;
} put;

static void family(const put *p, const char *name, const char *type, const char *help)
{
    fprintf(p->file, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void one(const put *p, const char *name, const char *type, const char *help, double value)
{
    family(p, name, type, help);
    fprintf(p->file, "%s %.17g\n", name, value);
}

static void labelled(const put *p, const char *name, const char *label, const char *is,
                     double value)
{
    fprintf(p->file, "%s{%s=\"%s\"} %.17g\n", name, label, is, value);
}

static int open_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n > 3 ? n - 3 : 0; /* without ".", ".." and this directory itself */
}

static void put_work(const put *p, const dispatch *d, int64_t now)
{
    int busy = 0, joined = 0;
    int64_t oldest = 0;
    for (const worker_seat *worker = d->seats; worker; worker = worker->next) {
        joined++;
        busy += worker->work != NULL;
        if (worker->work && now - worker->since_ns > oldest)
            oldest = now - worker->since_ns;
    }
    family(p, "prepd_workers", "gauge", "worker processes by state");
    labelled(p, "prepd_workers", "state", "busy", busy);
    labelled(p, "prepd_workers", "state", "idle", joined - busy);
    one(p, "prepd_workers_wanted", "gauge", "local workers asked for", d->local.target);
    one(p, "prepd_worker_restarts_total", "counter", "local workers replaced",
        (double)d->local.respawned);
    one(p, "prepd_lease_age_seconds", "gauge", "longest time a worker is on its present item",
        (double)oldest / 1e9);
    one(p, "prepd_leases_waiting", "gauge", "lost leases to be given again",
        (double)lease_book_waiting(&d->book));
    family(p, "prepd_leases_lost_total", "counter", "leases whose worker went, by cause");
    labelled(p, "prepd_leases_lost_total", "reason", "crash", (double)d->counts.crashes);
    labelled(p, "prepd_leases_lost_total", "reason", "timeout", (double)d->counts.timeouts);
    labelled(p, "prepd_leases_lost_total", "reason", "outside", (double)d->counts.outside);
    labelled(p, "prepd_leases_lost_total", "reason", "breach", (double)d->counts.breaches);
    family(p, "prepd_stage_seconds_total", "counter", "time of all workers by stage of a row");
    for (int i = 0; i < N_STAGES; i++)
        labelled(p, "prepd_stage_seconds_total", "stage", stage_names[i],
                 (double)d->counts.stage_ns[i] / 1e9);
}

static void put_streams(const put *p, const dispatch *d)
{
    int64_t credit = 0, reserved = 0, unreturned = 0, slots = 0;
    for (const consumer_seat *consumer = d->consumer_seats; consumer; consumer = consumer->next) {
        credit += consumer->credit;
        reserved += consumer->reserved;
        unreturned += consumer->unreturned;
        slots += consumer->n_slots;
    }
    one(p, "prepd_consumers", "gauge", "connected consumers", d->n_consumers);
    one(p, "prepd_credit_bytes", "gauge", "credit left, all consumers", (double)credit);
    family(p, "prepd_queue_bytes", "gauge", "bytes of rows under way by place");
    labelled(p, "prepd_queue_bytes", "place", "reserved", (double)reserved);
    labelled(p, "prepd_queue_bytes", "place", "sent", (double)unreturned);
    one(p, "prepd_queue_rows", "gauge", "rows between lease and sending", (double)slots);
    family(p, "prepd_quarantined", "gauge", "samples in quarantine by data section");
    labelled(p, "prepd_quarantined", "section", "train", (double)d->train.bad.n_entries);
    labelled(p, "prepd_quarantined", "section", "eval", (double)d->eval.bad.n_entries);
    family(p, "prepd_damaged", "gauge",
           "pictures that decoded with a warning that their file is damaged, by data section");
    labelled(p, "prepd_damaged", "section", "train", (double)d->train.damaged.n_entries);
    labelled(p, "prepd_damaged", "section", "eval", (double)d->eval.damaged.n_entries);
    family(p, "prepd_index_records_left", "gauge", "index records still to be made");
    labelled(p, "prepd_index_records_left", "section", "train",
             d->train.build.active ? (double)d->train.build.left : 0);
    labelled(p, "prepd_index_records_left", "section", "eval",
             d->eval.build.active ? (double)d->eval.build.left : 0);
}

static void put_all(const put *p, const dispatch *d)
{
    const serve_counts *k = &d->counts;
    const int64_t now = clock_ns();
    family(p, "prepd_build_info", "gauge", "1, with the version");
    labelled(p, "prepd_build_info", "version", TESSERA_VERSION, 1);
    one(p, "prepd_uptime_seconds", "gauge", "since the daemon began",
        (double)(now - d->started_ns) / 1e9);
    one(p, "prepd_rows_total", "counter", "rows sent", (double)k->rows);
    one(p, "prepd_samples_total", "counter", "samples sent", (double)k->samples);
    one(p, "prepd_sent_bytes_total", "counter", "bytes of rows sent", (double)k->bytes);
    family(p, "prepd_cache_total", "counter", "pictures looked for in the cache, by outcome");
    labelled(p, "prepd_cache_total", "outcome", "hit", (double)k->cached[0]);
    labelled(p, "prepd_cache_total", "outcome", "miss", (double)k->cached[1]);
    one(p, "prepd_shipped_bytes_total", "counter", "bytes of files sent with leases (data.ship)",
        (double)k->shipped);
    one(p, "prepd_quarantined_total", "counter", "samples put in quarantine by this run",
        (double)k->quarantined);
    one(p, "prepd_refused_messages_total", "counter", "messages that broke the protocol",
        (double)d->peer_limits.refused);
    one(p, "prepd_refused_keys_total", "counter", "connections with an unknown key",
        (double)d->peer_limits.refused_keys);
    put_work(p, d, now);
    put_streams(p, d);
    one(p, "process_resident_memory_bytes", "gauge", "of the dispatcher", (double)proc_rss_bytes());
    one(p, "process_open_fds", "gauge", "of the dispatcher", open_descriptors());
}

/* The daemon is healthy if work that is out makes progress and comes back; otherwise the loop turns
 * and nothing happens. */
const char *metrics_unhealthy(const dispatch *d, int64_t now)
{
    const double patience = 4 * d->options->prepd_sample_timeout + 30;
    bool out = false;
    for (const worker_seat *worker = d->seats; worker && !out; worker = worker->next)
        out = worker->work != NULL;
    if (out && (double)(now - d->answered_ns) / 1e9 > patience)
        return "leases are out, and for several times prepd.sample_timeout none has made progress "
               "or come back";
    if (d->stopping)
        return "stopping";
    return NULL;
}

const char *metrics_unready(const dispatch *d)
{
    if (d->stopping || d->draining)
        return "leaving";
    if (!d->train.ready)
        return source_waits_for(&d->train) ? "another prepd builds the index"
                                           : "the index is being built";
    return d->seats ? NULL : "no worker has joined";
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
    const dispatch *d = user;
    const put p = {out};
    const char *why = NULL;
    if (strcmp(path, "/") == 0) {
        *out_type = "text/html; charset=utf-8";
        fputs(index_page, out);
        return 200;
    }
    if (strcmp(path, "/metrics") == 0) {
        put_all(&p, d);
        return 200;
    }
    if (strcmp(path, "/healthz") == 0)
        why = metrics_unhealthy(d, clock_ns());
    else if (strcmp(path, "/readyz") == 0)
        why = metrics_unready(d);
    else {
        fprintf(out, "not found; there are /metrics /healthz /readyz\n");
        return 404;
    }
    fprintf(out, "%s\n", why ? why : "ok");
    return why ? 503 : 200;
}
