/* SPDX-License-Identifier: Apache-2.0 */
/* sim_log.c: see sim_log.h. */
#include "tests/sim/common/sim_log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "tests/sim/common/sim_random.h"

enum { NS_PER_US = 1000, US_PER_S = 1000000 };

static void add_word(sim_log *log, uint64_t word)
{
    log->hash = sim_random_mix(log->hash ^ word) + UINT64_C(0x9e3779b97f4a7c15);
}

sim_log sim_log_begin(uint64_t seed, FILE *trace)
{
    sim_log log = {.trace = trace};
    add_word(&log, seed);
    return log;
}

void sim_log_note(sim_log *log, int64_t at_ns, int kind, int who, uint64_t word)
{
    log->events++;
    add_word(log, (uint64_t)at_ns);
    add_word(log, (uint64_t)(uint32_t)kind << 32 | (uint32_t)who);
    add_word(log, word);
}

void sim_log_add(sim_log *log, const void *bytes, size_t size)
{
    const unsigned char *from = bytes;
    add_word(log, size);
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = 0;
        for (size_t i = 0; i < 8 && at + i < size; i++)
            word |= (uint64_t)from[at + i] << (8 * i); /* the same on any machine */
        add_word(log, word);
    }
}

void sim_log_tell(const sim_log *log, int64_t at_ns, const char *format, ...)
{
    va_list values;
    if (!log->trace)
        return;
    const int64_t us = at_ns / NS_PER_US;
    fprintf(log->trace, "%6" PRId64 ".%06" PRId64 " s  ", us / US_PER_S, us % US_PER_S);
    va_start(values, format);
    vfprintf(log->trace, format, values);
    va_end(values);
    fputc('\n', log->trace);
}
