/* SPDX-License-Identifier: Apache-2.0 */
/* sim_log.h: what happened in a simulated schedule: a hash of all events, which is the same
 * wherever the seed is played, and a trace in words for whoever asks for one.
 *
 * The hash is of what the world notes, never of addresses, padding or the trace's words, so a
 * schedule has the same hash with a trace and without one. */
#ifndef TESSERA_TESTS_SIM_COMMON_SIM_LOG_H
#define TESSERA_TESTS_SIM_COMMON_SIM_LOG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct sim_log {
    uint64_t hash;
    uint64_t events; /* how many were noted */
    FILE *trace;     /* NULL: nobody asked for the story. Borrowed */
} sim_log;

/* Begins a schedule: no events, no story before it. */
sim_log sim_log_begin(uint64_t seed, FILE *trace);
/* Notes an event: its time, kind and subject,
 * and a number that tells it from others of its kind. */
void sim_log_note(sim_log *log, int64_t at_ns, int kind, int who, uint64_t word);
/* Adds bytes to the hash, such as those of a message. */
void sim_log_add(sim_log *log, const void *bytes, size_t size);
/* Prints a line of the story with its time in seconds, if there is a trace. Callers whose words are
 * costly to make look at log->trace first. */
void sim_log_tell(const sim_log *log, int64_t at_ns, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
