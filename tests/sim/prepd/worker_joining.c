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

void worker_send_join(simulation *sim, sim_worker *worker)
{
    char json[700], before[200] = "";
    const char *images = worker->bent == BENT_OTHER_DECODER ? sim_prints[1] : sim_prints[0],
               *tokens = worker->bent == BENT_OTHER_TOKENIZER ? sim_prints[0] : sim_prints[1];
    const bool all = worker->state != WORKER_STARTING && worker->bent != BENT_MUTE;
    if (worker->before[0])
        snprintf(before, sizeof before, ",\"before\":%s", worker->before);
    worker->before[0] = 0;
    int length =
        snprintf(json, sizeof json,
                 "{\"version\":\"" TESSERA_VERSION
                 "\",\"build\":\"%s\",\"fingerprints\":{\"images\":\"%s\"%s%s%s},"
                 "\"host\":\"host%d\",\"pid\":%d",
                 worker->bent == BENT_OTHER_BUILD ? "b1111111111111111111111111111111" : sim_build,
                 images, all ? ",\"tokens\":\"" : "", all ? tokens : "", all ? "\"" : "",
                 worker->host, (int)worker->pid);
    if (worker->supervisor >= 0)
        length += snprintf(json + length, sizeof json - (size_t)length,
                           ",\"supervisor\":\"s%d\",\"ship\":false%s", worker->supervisor, before);
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

void worker_take_terms(simulation *sim, int number, const wire_msg *message)
{
    sim_worker *worker = sim->worker[number];
    const span text = wire_msg_part(message, 1);
    const hash128 digest = hash_bytes(text.data, text.size);
    uint64_t terms;
    memcpy(&terms, digest.bytes, sizeof terms);
    terms |= 1;
    if (worker->terms) {
        if (worker->terms != terms)
            worker_end(sim, number, PROC_END_LEFT, PROC_EXIT_AGAIN, "restarts");
        return;
    }
    worker->terms = terms;
    char wanted[48];
    snprintf(wanted, sizeof wanted, "seq_len: %lld", (long long)sim->options.training_seq_len);
    if (!memmem(text.data, text.size, wanted, strlen(wanted)))
        sim_break(sim, INV_WIRE, "the terms do not say what rows are like");
    worker->state = WORKER_LOADING;
    worker_go_on_after(sim, number, sim_random_tail(&sim->delays, 5 * MS, 60 * MS));
}
