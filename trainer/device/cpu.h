/* cpu.h: what the CPU's ops may ask of their stream: how many threads, and scratch memory.
 *
 * A CPU stream runs every op before the call returns. Each stream owns one scratch block that
 * grows to the largest request and stays, so that a step allocates nothing once warm. */
#ifndef TESSERA_DEVICE_CPU_H
#define TESSERA_DEVICE_CPU_H

#include "trainer/device/backend.h"

/* Threads worth starting for `work` element operations: 1 below the size where waking a second
 * thread costs more than it saves. No result may depend on it. */
int cpu_threads(const stream *s, int64_t work);

/* At least `bytes`, aligned to 64, valid until the next cpu_scratch on this stream; contents
 * undefined. NO_MEMORY where the machine has none. */
WARN_UNUSED status cpu_scratch(stream *s, size_t bytes, void **out);

#endif
