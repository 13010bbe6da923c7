/* SPDX-License-Identifier: Apache-2.0 */
/* sim_memory.h: counts the blocks of memory that are in use, so that a simulator finds what a core
 * forgets to free, in the schedule in which it does.
 *
 * Whoever links this has malloc, calloc, realloc, aligned_alloc, posix_memalign and free of its
 * own, which the C library uses too. They also write over what is given out and what is freed, so
 * that whatever reads it finds the same each time, and nothing that makes sense. With a sanitizer,
 * which has its own, nothing is counted. */
#ifndef TESSERA_TESTS_SIM_COMMON_SIM_MEMORY_H
#define TESSERA_TESTS_SIM_COMMON_SIM_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* Blocks that were given out and not freed, of the whole process; 0 with a sanitizer. */
int64_t sim_memory_blocks(void);

/* From now on the nth request for memory is refused, once; 0: none is. Returns how many were still
 * to come, 0 if it has been refused. Nothing is refused with a sanitizer. */
int64_t sim_memory_refuse(int64_t nth);
/* While it is held, requests are not counted: what a core calls outside of itself has memory.
 * Returns what held before. */
bool sim_memory_hold(bool held);

#endif
