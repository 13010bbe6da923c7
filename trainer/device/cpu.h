/* cpu.h: what the CPU's ops may ask of their stream: how many threads, and scratch memory.
 *
 * A CPU stream runs every op before the call returns. Each stream owns one scratch block that
 * grows to the largest request and stays, so that a step allocates nothing once warm. */
#ifndef TESSERA_TRAINER_DEVICE_CPU_H
#define TESSERA_TRAINER_DEVICE_CPU_H

#include "trainer/device/backend.h"

/* Items [begin, end) of an op, done by this thread of cpu_threads. */
typedef struct part {
    int64_t begin, end;
    int thread;
} part;

/* context: usually the op's arguments. */
typedef void (*cpu_body)(const void *context, part p);

/* Runs body over [0, n), on several threads where that pays. work: element operations (about a
 * quarter of a nanosecond) per item. The cut into parts depends on n and work alone; body must not
 * make its result depend on it, nor on the thread, which only chooses among scratch areas. */
void cpu_run(stream *s, int64_t n, int64_t work, cpu_body body, const void *context);

/* Whether this build has ops for AVX2 (and FMA) and this processor runs them. */
bool cpu_has_avx2(void);

/* Parts know their thread by a number below this. */
int cpu_threads(const stream *s);

/* At least `bytes`, aligned to 64, valid until the next cpu_scratch on this stream; contents
 * undefined. NO_MEMORY where the machine has none. */
WARN_UNUSED status cpu_scratch(stream *s, size_t bytes, void **out);

#endif
