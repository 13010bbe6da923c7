/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.h: what the CPU's ops may ask of their stream: to run a loop on several threads, and for
 * scratch memory.
 *
 * A CPU stream runs every op before the call returns. Each stream owns one block of scratch that
 * grows to the largest request and then stays, so that a warm step allocates nothing. */
#ifndef TESSERA_TRAINER_DEVICE_CPU_H
#define TESSERA_TRAINER_DEVICE_CPU_H

#include "trainer/device/backend.h"

/* Items [begin, end) of an op, which `thread` does.
 * Threads are numbered from 0 to cpu_threads - 1. */
typedef struct part {
    int64_t begin, end;
    int thread;
} part;

/* Does one part of an op. `context` is what was given to cpu_run, usually the op's arguments. */
typedef void (*cpu_body)(const void *context, part piece);

/* Runs `body` over the items [0, how_many), on several threads if that pays, and returns when all
 * are done. `work` is the cost of one item in element operations (about a quarter of a nanosecond
 * each). How the items are cut into parts depends on `how_many` and work alone. The result of
 * `body` must depend neither on the cut nor on the thread, which may only choose one of several
 * scratch areas; so the same input gives the same bits with any number of threads. */
void cpu_run(stream *stream, int64_t how_many, int64_t work, cpu_body body, const void *context);

/* Whether this build has ops for AVX2 (with FMA) and this processor can run them. */
bool cpu_has_avx2(void);

/* The number of threads of the stream's device; every part.thread is below it. */
int cpu_threads(const stream *stream);

/* At least `bytes` of scratch, aligned to 64. It is the stream's, its contents are undefined, and
 * it is valid until the next cpu_scratch on this stream. NO_MEMORY if the machine has none left.
 */
WARN_UNUSED status cpu_scratch(stream *stream, size_t bytes, void **out);

#endif
