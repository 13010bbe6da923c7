/* worker_joining.c: how a simulated worker comes to its daemon: it connects, says JOIN, takes
 * TERMS.
 */
#include <stdio.h>
#include <string.h>

#include "tests/sim/prepd/daemon_world.h"
#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/network.h"
#include "tests/sim/prepd/people.h"

static const int64_t ASK_AGAIN_NS = 10000000000, RETRY_NS = 500000000;

/* Writes the fingerprints that the worker can tell: that of pictures at once, the others once it
 * has loaded what its terms name. */
static void put_prints(const sim_worker *worker, char *out, size_t size)
{
    const bool loaded = worker->state != WORKER_STARTING && worker->bent != BENT_MUTE,
               can[N_STREAM_PRINTS] = {[PRINT_IMAGES] = true,
                                       [PRINT_VIDEOS] = loaded && worker->videos,
                                       [PRINT_TOKENS] = loaded},
               differs[N_STREAM_PRINTS] = {[PRINT_IMAGES] = worker->bent == BENT_OTHER_DECODER,
                                           [PRINT_VIDEOS] = worker->bent == BENT_OTHER_DECODER,
                                           [PRINT_TOKENS] = worker->bent == BENT_OTHER_TOKENIZER};
    size_t length = 0;
    for (int k = 0; k < N_STREAM_PRINTS; k++)
        if (can[k])
            length += (size_t)snprintf(out + length, size - length, "%s\"%s\":\"%s\"",
                                       length ? "," : "", print_names[k],
                                       sim_prints[differs[k] ? (k + 1) % N_STREAM_PRINTS : k]);
}

void worker_send_join(simulation *sim, sim_worker *worker)
{
    char json[700], before[200] = "", prints[160];
    put_prints(worker, prints, sizeof prints);
    if (worker->before[0])
        snprintf(before, sizeof before, ",\"before\":%s", worker->before);
    worker->before[0] = 0;
    int length =
        snprintf(json, sizeof json,
                 "{\"version\":\"" TESSERA_VERSION "\",\"build\":\"%s\",\"fingerprints\":{%s},"
                 "\"host\":\"host%d\",\"pid\":%d",
                 worker->bent == BENT_OTHER_BUILD ? "b1111111111111111111111111111111" : sim_build,
                 prints, worker->host, (int)worker->pid);
    if (worker->supervisor >= 0)
        length += snprintf(json + length, sizeof json - (size_t)length,
                           ",\"supervisor\":\"s%d\",\"ship\":%s%s", worker->supervisor,
                           worker->ship ? "true" : "false", before);
    snprintf(json + length, sizeof json - (size_t)length, "}");
    link_say(sim, worker->link, KIND_JOIN, 0, json);
}

/* What a worker says last may come after its daemon has heard of its end. */
static int64_t local_latency(const simulation *sim, const sim_worker *worker)
{
    return !worker->local                                ? 2 * MS
           : sim->rules.hopeless == HOPELESS_WORKERS_SAY ? 20 * MS
                                                         : 100 * US;
}

void worker_connect(simulation *sim, int number)
{
    sim_worker *worker = sim->worker[number];
    worker->link = link_open(sim, END_WORKER, number, worker->daemon, DOOR_WORKERS,
                             local_latency(sim, worker));
    if (worker->link >= 0) {
        worker_send_join(sim, worker);
        worker_go_on_after(sim, number, ASK_AGAIN_NS);
    } else if (worker->local) {
        worker_end(sim, number, PROC_END_LEFT, 0, "there is no daemon");
    } else {
        worker_go_on_after(sim, number, RETRY_NS);
    }
}

void worker_take_terms(simulation *sim, int number, const heard *text)
{
    sim_worker *worker = sim->worker[number];
    uint64_t terms;
    memcpy(&terms, text->digest.bytes, sizeof terms);
    terms |= 1;
    if (worker->terms) {
        if (worker->terms != terms)
            worker_end(sim, number, PROC_END_LEFT, PROC_EXIT_AGAIN, "restarts");
        return;
    }
    worker->terms = terms;
    char wanted[48];
    snprintf(wanted, sizeof wanted, "seq_len: %lld", (long long)sim->options.training_seq_len);
    if (!strstr(json_text(json_find(text->said, "options"), ""), wanted))
        sim_break(sim, INV_WIRE, "the terms do not say what rows are like");
    worker->videos = json_bool(json_find(text->said, "videos"), false);
    worker->state = WORKER_LOADING;
    worker_go_on_after(sim, number, sim_random_tail(&sim->delays, 5 * MS, 60 * MS));
}
