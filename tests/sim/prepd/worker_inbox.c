/* SPDX-License-Identifier: Apache-2.0 */
/* worker_inbox.c: what a simulated worker does with the messages of its daemon. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/people.h"

/* Does what the next message asks for. */
static void handle(simulation *sim, int number, wire_msg *message)
{
    sim_worker *worker = sim->worker[number];
    frame head;
    heard *text;
    if (heard_read(&sim->heard, message, &head, &text) != ST_OK) {
        sim_break(sim, INV_WIRE, "a worker cannot read what it was sent: %s", status_text());
        return;
    }
    worker->heard_ns = sim->now_ns;
    if (head.kind == KIND_LEASE && !worker->proved) {
        sim_break(sim, INV_PROVED, "worker %d has a lease before it has loaded its terms", number);
    } else if (head.kind == KIND_LEASE) {
        worker->state = WORKER_BUSY;
        work_begin(sim, number, &head, text, message);
        return; /* the lease has taken it */
    } else if (head.kind == KIND_TERMS) {
        worker_take_terms(sim, number, text);
    } else if (head.kind == KIND_BYE) {
        const bool again = json_bool(json_find(text->said, "again"), false);
        worker->wait_ns = json_int(json_find(text->said, "wait_s"), 0) * SECOND;
        if (worker->wait_ns > 0)
            check_wait(sim, worker, json_text(json_find(text->said, "why"), ""));
        worker_end(sim, number, PROC_END_LEFT, again ? PROC_EXIT_AGAIN : 0,
                   again ? "restarts" : "exit code 0");
    } else if (head.kind == KIND_ERROR) {
        const status st = wire_error(text->said, "core");
        sim_log_tell(&sim->log, sim->now_ns, "worker %d is refused: %s", number, status_text());
        check_refusal(sim, worker, st);
        worker_end(sim, number, PROC_END_LEFT, status_exit_code(st), "refused");
    } else {
        sim_break(sim, INV_WIRE, "a worker is sent %s", frame_kind_name(head.kind));
    }
    heard_drop(&text);
}

/* Reads the messages that have come, as long as nothing is in work. */
void worker_read(simulation *sim, int number)
{
    sim_worker *worker = sim->worker[number];
    while (worker->n_inbox > 0 && !worker->stopped &&
           (worker->state == WORKER_IDLE || worker->state == WORKER_STARTING)) {
        wire_msg *message = worker->inbox[0];
        memmove(worker->inbox, worker->inbox + 1,
                (size_t)--worker->n_inbox * sizeof *worker->inbox);
        handle(sim, number, message);
        wire_msg_free(&message);
    }
}

void worker_message(simulation *sim, int number, wire_msg *message)
{
    sim_worker *worker = sim->worker[number];
    wire_msg *kept = NULL;
    if (worker->state == WORKER_GONE)
        return;
    frame head;
    if (frame_decode(wire_msg_part(message, 0), "core", &head) != ST_OK)
        return;
    worker->n_terms += head.kind == KIND_TERMS;
    if (sim->rules.weight[FAULT_JUMP] == 0 &&
        worker->n_terms > 20 + sim->daemon[worker->daemon].reloads +
                              3 * (sim->now_ns - worker->begun_ns) / SECOND)
        sim_break(sim, INV_MEMORY, "worker %d is sent its terms again and again", number);
    if (worker->n_inbox > 1 && (head.kind == KIND_TERMS || head.kind == KIND_BYE))
        return; /* a remote worker is sent its TERMS every second, and one that was given up is told
                   so whenever it says something: those that wait are enough */
    if (worker->n_inbox == INBOX) {
        sim_break(sim, INV_MEMORY, "worker %d is sent more than it can ever read", number);
        return;
    }
    if (wire_msg_new(&kept) != ST_OK || wire_msg_move(kept, message) != ST_OK)
        abort();
    worker->inbox[worker->n_inbox++] = kept;
    worker_read(sim, number);
}
