/* SPDX-License-Identifier: Apache-2.0 */
/* sim_queue.h: the events that a simulated world still has before it, by virtual time. Events of
 * the same instant come in the order in which they were put in, so that a seed always gives the
 * same order. */
#ifndef TESSERA_TESTS_SIM_COMMON_SIM_QUEUE_H
#define TESSERA_TESTS_SIM_COMMON_SIM_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sim_event {
    int64_t at_ns;  /* virtual time */
    uint64_t order; /* set by sim_queue_put */
    int kind, who;  /* the world's own */
    int64_t word;   /* the world's own */
    void *data;     /* the world's own; the queue neither reads nor frees it */
} sim_event;

typedef struct sim_queue {
    sim_event *event; /* [capacity], a binary heap */
    size_t count, capacity;
    uint64_t puts; /* how many events were ever put in */
} sim_queue;

/* An empty queue is all zeros. Ends the process if there is no memory. */
void sim_queue_put(sim_queue *queue, sim_event event);
/* Takes the next event out. False: there is none. */
bool sim_queue_take(sim_queue *queue, sim_event *out);
/* The next event, which stays in; NULL: there is none. Valid until the queue changes. */
const sim_event *sim_queue_next(const sim_queue *queue);
/* Frees the queue, not the data of its events, which the world takes out before. */
void sim_queue_done(sim_queue *queue);

#endif
