/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c: the daemon's figures for Prometheus (text exposition format, base units, no sample
 * ids), and the answers to a service manager's two questions: /healthz (does the loop turn, and
 * does work come back?) and /readyz (would a consumer get rows now?).
 *
 * To add a metric, write it in put_work, put_streams, put_sections or put_all, and add it to
 * deploy/grafana-prepd.json if people should see it. */
#include <string.h>

#include "common/base/clock.h"
#include "common/http/exposition.h"
#include "prepd/serve/shell.h"
#include "prepd/serve/core/workers/core_workers.h"
#include "prepd/serve/core/decisions/core_decisions.h"

static void put_trust(FILE *out, const dispatch *state)
{
    int excluded = 0, watched = 0, deciders = 0;
    for (int i = 0; i < state->accounts.used; i++) {
        excluded += account_is_excluded(state->accounts.of[i], state->now_ns);
        watched += state->accounts.of[i]->watched > 0;
    }
    for (const worker_seat *worker = state->seats; worker; worker = worker->next)
        deciders += worker->decider && seat_can_work(worker);
    exposition_one(out, "prepd_deciders", "gauge",
                   "workers whose word decides: the daemon's own, and those of trusted keys",
                   deciders);
    exposition_family(out, "prepd_keys", "gauge",
                      "keys, or addresses, that are excluded, and whose next rows are checked");
    exposition_labelled(out, "prepd_keys", "state", "excluded", excluded);
    exposition_labelled(out, "prepd_keys", "state", "watched", watched);
    exposition_one(out, "prepd_doubts_waiting", "gauge", "rows that wait for a decider's check",
                   doubts_waiting(state));
    exposition_one(out, "prepd_contradicted_total", "counter",
                   "words of workers that deciders found to be false",
                   (double)state->counts.contradicted);
    exposition_one(out, "prepd_leases_taken_total", "counter",
                   "leases taken from slow workers by idle deciders", (double)state->counts.taken);
    exposition_one(out, "prepd_joins_deferred_total", "counter", "JOINs that were told to wait",
                   (double)state->counts.joins_deferred);
    exposition_one(
        out, "prepd_alarms_total", "counter",
        "alarms about this machine's memory or several machines' data; the log says which",
        (double)state->alarm.count);
}

/* Whether two workers are counted in one sample of prepd_worker_builds. */
static bool is_alike(const worker_seat *one, const worker_seat *other)
{
    return strcmp(one->build, other->build) == 0 && strcmp(one->host, other->host) == 0 &&
           strcmp(one->peer.key_name, other->peer.key_name) == 0;
}

/* The first of the workers that are alike stands for them. Machines beyond MOST_ORIGINS are counted
 * together, so that a crowd cannot fill the memory of whoever keeps the figures. */
static void put_builds(FILE *out, const dispatch *state)
{
    enum { MOST_ORIGINS = 256 };
    int told = 0, others = 0;
    exposition_family(out, "prepd_worker_builds", "gauge",
                      "worker processes by build id, host and name of their key");
    for (const worker_seat *worker = state->seats; worker; worker = worker->next) {
        const worker_seat *same = state->seats;
        int count = 0;
        while (!is_alike(same, worker))
            same = same->next;
        if (same != worker)
            continue;
        for (; same; same = same->next)
            count += is_alike(same, worker);
        if (told++ >= MOST_ORIGINS) {
            others += count;
            continue;
        }
        const exposition_label labels[] = {
            {"build", worker->build}, {"host", worker->host}, {"key", worker->peer.key_name}};
        exposition_sample(out, "prepd_worker_builds", labels, 3, count);
    }
    const exposition_label labels[] = {{"build", ""}, {"host", "others"}, {"key", ""}};
    if (others)
        exposition_sample(out, "prepd_worker_builds", labels, 3, others);
}

static void put_work(FILE *out, const dispatch *state, int64_t now)
{
    int busy = 0, joined = 0;
    int64_t oldest = 0;
    for (const worker_seat *worker = state->seats; worker; worker = worker->next) {
        joined++;
        busy += worker->work != NULL;
        if (worker->work && now - worker->since_ns > oldest)
            oldest = now - worker->since_ns;
    }
    exposition_family(out, "prepd_workers", "gauge", "worker processes by state");
    exposition_labelled(out, "prepd_workers", "state", "busy", busy);
    exposition_labelled(out, "prepd_workers", "state", "idle", joined - busy);
    put_builds(out, state);
    exposition_one(out, "prepd_workers_wanted", "gauge", "local workers asked for",
                   state->local.target);
    exposition_one(out, "prepd_worker_restarts_total", "counter", "local workers replaced",
                   (double)state->local.respawned);
    exposition_one(out, "prepd_lease_age_seconds", "gauge",
                   "longest time a worker is on its present item", (double)oldest / 1e9);
    exposition_one(out, "prepd_leases_waiting", "gauge", "lost leases to be given again",
                   (double)lease_book_waiting(&state->book));
    exposition_family(out, "prepd_leases_lost_total", "counter",
                      "leases whose worker went, by cause");
    exposition_labelled(out, "prepd_leases_lost_total", "reason", "crash",
                        (double)state->counts.crashes);
    exposition_labelled(out, "prepd_leases_lost_total", "reason", "timeout",
                        (double)state->counts.timeouts);
    exposition_labelled(out, "prepd_leases_lost_total", "reason", "outside",
                        (double)state->counts.outside);
    exposition_labelled(out, "prepd_leases_lost_total", "reason", "breach",
                        (double)state->counts.breaches);
    exposition_family(
        out, "prepd_checked_rows_total", "counter",
        "rows drawn or watched (prepd.audit), by outcome: made alike by two processes, "
        "or sent unchecked since no decider could start");
    exposition_labelled(out, "prepd_checked_rows_total", "outcome", "alike",
                        (double)state->counts.checked);
    exposition_labelled(out, "prepd_checked_rows_total", "outcome", "unchecked",
                        (double)state->counts.unchecked);
    put_trust(out, state);
    exposition_family(out, "prepd_stage_seconds_total", "counter",
                      "time of all workers by stage of a row");
    for (int i = 0; i < N_STAGES; i++)
        exposition_labelled(out, "prepd_stage_seconds_total", "stage", stage_names[i],
                            (double)state->counts.stage_ns[i] / 1e9);
}

/* A stream of rows as consumers ask for it, and what those that read it hold. */
typedef struct stream_sums {
    const char *name;
    int64_t consumers, credit, reserved, unreturned, slots, rows;
    uint64_t sent; /* also to those that have left */
    double pace;
} stream_sums;

static void add_consumer(const consumer_seat *consumer, stream_sums *sums)
{
    sums->consumers++;
    sums->credit += consumer->credit;
    sums->reserved += consumer->reserved;
    sums->unreturned += consumer->unreturned;
    sums->slots += consumer->n_slots;
    sums->rows += (int64_t)consumer->rows_sent;
    if (consumer->rows_per_s > sums->pace)
        sums->pace = consumer->rows_per_s;
}

static void put_place(FILE *out, const char *stream, const char *place, int64_t bytes)
{
    const exposition_label labels[] = {{"stream", stream}, {"place", place}};
    exposition_sample(out, "prepd_queue_bytes", labels, 2, (double)bytes);
}

/* One metric with a sample for each stream. */
#define PUT_STREAMS(metric, type, help, member)                                                    \
    do {                                                                                           \
        exposition_family(out, metric, type, help);                                                \
        for (int i = 0; i < N_STREAMS; i++)                                                        \
            exposition_labelled(out, metric, "stream", sums[i].name, (double)sums[i].member);      \
    } while (0)

static void put_streams(FILE *out, const dispatch *state)
{
    stream_sums sums[N_STREAMS] = {0};
    for (int i = 0; i < N_STREAMS; i++) {
        sums[i].name = STREAM_NAMES[i];
        sums[i].sent = state->counts.stream_rows[i];
    }
    for (const consumer_seat *consumer = state->consumer_seats; consumer; consumer = consumer->next)
        add_consumer(consumer, &sums[find_stream(consumer->stream)]);
    PUT_STREAMS("prepd_consumers", "gauge", "connected consumers", consumers);
    PUT_STREAMS("prepd_credit_bytes", "gauge", "credit that consumers have left", credit);
    exposition_family(out, "prepd_queue_bytes", "gauge", "bytes of rows under way by place");
    for (int i = 0; i < N_STREAMS; i++) {
        put_place(out, sums[i].name, "reserved", sums[i].reserved);
        put_place(out, sums[i].name, "sent", sums[i].unreturned);
    }
    PUT_STREAMS("prepd_queue_rows", "gauge", "rows between lease and sending", slots);
    PUT_STREAMS("prepd_stream_rows_total", "counter", "rows sent by stream", sent);
    PUT_STREAMS("prepd_stream_rows_sent", "gauge",
                "rows sent to the consumers that are connected now", rows);
    PUT_STREAMS(
        "prepd_stream_rows_per_second", "gauge",
        "how fast the fastest consumer moves along the stream, rows of other ranks included", pace);
}

/* Which stream a section is. The id is the same for all daemons and trainers of one stream. */
static void put_stream_info(FILE *out, const source *section)
{
    char id[HASH_TEXT];
    if (!section->stream_json)
        return;
    hash_print(hash_bytes(section->stream_json, strlen(section->stream_json)), id);
    const exposition_label labels[] = {{"section", section->name},
                                       {"id", id},
                                       {"data", section->options.data_path},
                                       {"split", section->options.data_split},
                                       {"model", section->options.model_path}};
    exposition_sample(out, "prepd_stream_info", labels, sizeof labels / sizeof *labels, 1);
}

static void put_sections(FILE *out, const dispatch *state)
{
    exposition_family(out, "prepd_stream_info", "gauge",
                      "1, with what the rows of a data section are made of");
    put_stream_info(out, &state->train);
    put_stream_info(out, &state->eval);
    exposition_family(out, "prepd_quarantined", "gauge", "samples in quarantine by data section");
    exposition_labelled(out, "prepd_quarantined", "section", "train", (double)state->train.bad.n);
    exposition_labelled(out, "prepd_quarantined", "section", "eval", (double)state->eval.bad.n);
    exposition_family(out, "prepd_damaged", "gauge",
                      "pictures that decoded with a warning that their file is damaged, by data "
                      "section");
    exposition_labelled(out, "prepd_damaged", "section", "train", (double)state->train.damaged.n);
    exposition_labelled(out, "prepd_damaged", "section", "eval", (double)state->eval.damaged.n);
    exposition_family(out, "prepd_index_records_left", "gauge", "index records still to be made");
    exposition_labelled(out, "prepd_index_records_left", "section", "train",
                        state->train.build.active ? (double)state->train.build.left : 0);
    exposition_labelled(out, "prepd_index_records_left", "section", "eval",
                        state->eval.build.active ? (double)state->eval.build.left : 0);
}

static void put_all(FILE *out, const dispatch *state)
{
    const serve_counts *counts = &state->counts;
    const int64_t now = clock_ns();
    const exposition_label build[] = {{"version", TESSERA_VERSION}, {"build", state->place.build}};
    exposition_family(out, "prepd_build_info", "gauge", "1, with the version and the build id");
    exposition_sample(out, "prepd_build_info", build, 2, 1);
    exposition_one(out, "prepd_uptime_seconds", "gauge", "since the daemon began",
                   (double)(now - state->started_ns) / 1e9);
    exposition_one(out, "prepd_rows_total", "counter", "rows sent", (double)counts->rows);
    exposition_one(out, "prepd_samples_total", "counter", "samples sent", (double)counts->samples);
    exposition_one(out, "prepd_sent_bytes_total", "counter", "bytes of rows sent",
                   (double)counts->bytes);
    exposition_family(out, "prepd_cache_total", "counter",
                      "pictures looked for in the cache, by outcome");
    exposition_labelled(out, "prepd_cache_total", "outcome", "hit", (double)counts->cached[0]);
    exposition_labelled(out, "prepd_cache_total", "outcome", "miss", (double)counts->cached[1]);
    exposition_one(out, "prepd_shipped_bytes_total", "counter",
                   "bytes of files sent with leases (data.ship)", (double)counts->shipped);
    exposition_one(out, "prepd_quarantined_total", "counter",
                   "samples put in quarantine by this run", (double)counts->quarantined);
    exposition_one(out, "prepd_refused_messages_total", "counter",
                   "messages that broke the protocol",
                   (double)(state->peer_limits.refused - state->peer_limits.refused_builds));
    exposition_one(out, "prepd_refused_keys_total", "counter", "connections with an unknown key",
                   (double)state->peer_limits.refused_keys);
    exposition_one(out, "prepd_refused_builds_total", "counter",
                   "workers refused because their build, libraries or tokenizer make other rows",
                   (double)state->peer_limits.refused_builds);
    put_work(out, state, now);
    put_streams(out, state);
    put_sections(out, state);
    exposition_process(out);
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

/* why; NULL if ready */
static const char *metrics_unready(const dispatch *state)
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
    const char *why = NULL;
    if (strcmp(path, "/") == 0) {
        *out_type = "text/html; charset=utf-8";
        fputs(index_page, out);
        return 200;
    }
    if (strcmp(path, "/metrics") == 0) {
        put_all(out, state);
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
