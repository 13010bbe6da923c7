/* SPDX-License-Identifier: Apache-2.0 */
/* simt.h: runs a block of CUDA threads on one processor, so that kernels can be tested without a
 * GPU.
 *
 * The .cu files are compiled as C++, with include/cuda_runtime.h in the place of the toolkit's
 * header; what that header needs is declared here. Blocks run one after the other. The threads of a
 * block are fibers that switch only at barriers and warp operations. The schedule decides which
 * thread runs first, so a missing barrier gives other numbers under another schedule.
 *
 * A launch fails, with the text of simt_error, where the hardware would hang or the result would be
 * undefined: threads of a block at different barriers; a barrier after some thread has left the
 * kernel; a warp operation whose mask names a lane that does not come; a shuffle from a lane
 * outside the mask. Only one thread of the process may use the harness. Letters: x, y, z the axes
 * of a grid. */
#ifndef TESSERA_TESTS_SIMT_H
#define TESSERA_TESTS_SIMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct simt_dim {
    unsigned x, y, z;
} simt_dim;

/* The running thread's position, by CUDA's names. */
extern simt_dim threadIdx, blockIdx, blockDim, gridDim;

/* FORWARD and REVERSE run the first, or the last, thread that can run. RANDOM draws another order
 * in every round, and a random order of the blocks. */
enum { SIMT_FORWARD, SIMT_REVERSE, SIMT_RANDOM, SIMT_SCHEDULES };

/* Sets the schedule of the launches that follow. Only RANDOM uses `seed`. */
void simt_schedule(int schedule, uint64_t seed);

/* Runs `body` for every thread of the grid. A block has `shared` bytes of dynamic shared memory,
 * which are filled with NaN before each block. Returns false if the launch failed: simt_error says
 * why, and what the kernel wrote stays written. */
bool simt_run(simt_dim grid, simt_dim block, size_t shared, void (*body)(const void *),
              const void *context);
/* Why the last failed simt_run failed. */
const char *simt_error(void);

/* How many products warps have made on tensor cores so far. */
extern int64_t simt_products;

/* The rest is called from inside a kernel. `file` and `line` are those of the kernel's source. */

/* This block's dynamic shared memory. */
void *simt_shared(void);
/* Ends the launch because a check inside the kernel failed. */
void simt_stop(const char *condition, const char *file, int line) __attribute__((noreturn));
/* Ends the launch because the kernel traps. */
void simt_trap(const char *file, int line) __attribute__((noreturn));
/* The device's clock.
 * It advances a little at each reading, and by the time that a thread sleeps. */
int64_t simt_clock_ns(void);
void simt_sleep(int64_t ns);
/* Sets a function that is called at each reading of the clock, with the time that is read. NULL:
 * none. */
void simt_on_clock(void (*look)(void *context, int64_t ns), void *context);
/* A barrier: every thread of the block must come, to the same place in the source. */
void simt_barrier(const char *file, int line);

enum {
    SIMT_SYNC,
    SIMT_INDEX, /* shuffles: `operand` is the source lane, or the distance to it */
    SIMT_UP,
    SIMT_DOWN,
    SIMT_XOR,
    SIMT_BALLOT,
    SIMT_ADD, /* sum of 32-bit integers */
    SIMT_MIN_I32,
    SIMT_MAX_I32,
    SIMT_MIN_U32,
    SIMT_MAX_U32
};

/* A warp operation of the lanes in `mask`. All of them must come, with the same kind and mask.
 * Returns this lane's result. `width` is the size of a shuffle's groups, a power of two up to 32.
 */
uint64_t simt_warp(int kind, unsigned mask, uint64_t value, unsigned operand, unsigned width,
                   const char *file, int line);

#ifdef __cplusplus
}
#endif

#endif
