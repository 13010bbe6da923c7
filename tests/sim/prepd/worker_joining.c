/* SPDX-License-Identifier: Apache-2.0 */
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

/* Whether the worker can tell this fingerprint: that of pictures at once, the others once it has
 * loaded what its terms name. */
static bool can_tell(const sim_worker *worker, print_kind kind)
{
    const bool loaded = worker->state != WORKER_STARTING && worker->bent != BENT_MUTE;
    return kind == PRINT_IMAGES || (loaded && (worker->videos || !print_needs_videos(kind)));
}

/* One of another build either has leases of another form, or makes other rows of the same. */
static bool has_other_form(const sim_worker *worker)
{
    return worker->bent == BENT_OTHER_BUILD && worker->supervisor % 2 == 0;
}

static bool differs_in(const sim_worker *worker, print_kind kind)
{
    return kind == PRINT_TOKENS     ? worker->bent == BENT_OTHER_TOKENIZER
           : kind < N_STREAM_PRINTS ? worker->bent == BENT_OTHER_DECODER
           : kind == PRINT_PACKING  ? worker->bent == BENT_OTHER_BUILD && !has_other_form(worker)
                                    : false;
}

static void put_prints(const sim_worker *worker, char *out, size_t size)
{
    size_t length = 0;
    for (int k = 0; k < N_PRINTS; k++)
        if (can_tell(worker, (print_kind)k))
            length += (size_t)snprintf(
                out + length, size - length, "%s\"%s\":\"%s\"", length ? "," : "", print_names[k],
                sim_prints[differs_in(worker, (print_kind)k) ? (k + 1) % N_PRINTS : k]);
}

/* What the worker says to be: itself, or a local worker that is there, under that one's pid and a
 * ticket that was good for another. */
static void put_self(const simulation *sim, const sim_worker *worker, char *out, size_t size)
{
    const sim_worker *posed = worker;
    if (worker->local || !sim->rules.forges[worker->supervisor]) {
        snprintf(out, size, "\"host\":\"host%d\",\"pid\":%d,\"ship\":%s,\"ticket\":\"%s\"",
                 worker->host, (int)worker->pid, worker->ship ? "true" : "false", worker->ticket);
        return;
    }
    const char *old = "00000000000000000000000000000000"; /* of the last that has ended */
    for (int i = 0; i < sim->n_workers; i++) {
        const sim_worker *other = sim->worker[i];
        if (!other->local)
            continue;
        if (other->state != WORKER_GONE)
            posed = other;
        else if (sim->now_ns - other->ended_ns > SECOND)
            old = other->ticket;
    }
    /* With such a ticket it is told to come back; without one it is a worker like others. */
    snprintf(out, size, "\"host\":\"host0\",\"pid\":%d,\"ticket\":\"%s\"", (int)posed->pid,
             sim_random_mix((uint64_t)worker->pid) % 3 ? "" : old);
}

void worker_send_join(simulation *sim, sim_worker *worker)
{
    char json[1200], prints[700], self[200];
    const bool newer = worker->supervisor >= 0 && sim->rules.newer[worker->supervisor];
    put_prints(worker, prints, sizeof prints);
    put_self(sim, worker, self, sizeof self);
    snprintf(json, sizeof json,
             "{\"version\":\"" TESSERA_VERSION
             "\",\"build\":\"%s\",\"form\":%d,\"fingerprints\":{%s},%s}",
             worker->bent == BENT_OTHER_BUILD || newer ? "b1111111111111111111111111111111"
                                                       : sim_build,
             LEASE_FORM + has_other_form(worker), prints, self);
    link_say(sim, worker->link, KIND_JOIN, 0, json);
}

bool worker_floods(simulation *sim, int number)
{
    enum { AT_ONCE = 5, MOST_FLOODS = 60 };
    sim_worker *worker = sim->worker[number];
    if (++worker->stalled > MOST_FLOODS || sim->now_ns >= sim->calm_ns)
        return false;
    for (int i = 0; i < AT_ONCE; i++) {
        worker->link = link_open(sim, END_WORKER, number, worker->daemon, DOOR_WORKERS, 2 * MS);
        if (worker->link < 0)
            break;
        worker_send_join(sim, worker);
        link_say(sim, worker->link, KIND_BYE, 0, "{}");
        link_close(sim, worker->link);
        worker->link = -1;
    }
    return true;
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
    const char *options = json_text(json_find(text->said, "options"), "");
    if (!*options && sim->rules.weight[FAULT_NO_MEMORY] > 0)
        return; /* libc's open_memstream says nothing of it when its memory is refused */
    if (!strstr(options, wanted))
        sim_break(sim, INV_WIRE, "the terms do not say what rows are like");
    worker->videos = json_bool(json_find(text->said, "videos"), false);
    worker->state = WORKER_LOADING;
    worker_go_on_after(sim, number, sim_random_tail(&sim->delays, 5 * MS, 60 * MS));
}
