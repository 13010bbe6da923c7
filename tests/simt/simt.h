/* simt.h: a block of CUDA threads on one processor, so that kernels run where there is no GPU.
 *
 * The .cu files are compiled as C++ with include/cuda_runtime.h in the place of the toolkit's; what
 * that header needs is here. Blocks run one after another. A block's threads are fibers that give
 * way at barriers and warp operations only; which goes on first is the schedule's choice, so a
 * missing barrier gives other numbers under another schedule.
 *
 * A launch fails, with the text of simt_error, where the hardware would hang or answer anything:
 * threads of a block at different barriers, a barrier that a thread has left the kernel without, a
 * warp operation whose mask names a lane that does not come, a shuffle from outside the mask.
 * One thread of the process may use it. */
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

/* The running thread's, by CUDA's names. */
extern simt_dim threadIdx, blockIdx, blockDim, gridDim;

/* FORWARD and REVERSE: the first or last thread that can go on; RANDOM: another order in every
 * round, blocks permuted too. */
enum { SIMT_FORWARD, SIMT_REVERSE, SIMT_RANDOM, SIMT_SCHEDULES };

/* Holds for the launches that follow. seed: of RANDOM alone. */
void simt_schedule(int schedule, uint64_t seed);

/* Runs body for every thread of the grid. shared: bytes of dynamic shared memory, filled with NaN
 * before each block. False: simt_error says why, and what the kernel had written stays written. */
bool simt_run(simt_dim grid, simt_dim block, size_t shared, void (*body)(const void *),
              const void *context);
/* Of the last simt_run that answered false. */
const char *simt_error(void);

/* Products of a warp on tensor cores so far. */
extern int64_t simt_products;

/* The rest is called from inside a kernel. site: the caller's file and line. */

/* This block's dynamic shared memory. */
void *simt_shared(void);
/* Ends the launch: a check inside the kernel failed. */
void simt_stop(const char *condition, const char *file, int line) __attribute__((noreturn));
/* The device's clock: goes on by a little at each look, and by what a thread sleeps. */
int64_t simt_clock_ns(void);
void simt_sleep(int64_t ns);
/* NULL: nobody. Told of each look, with what it will read. */
void simt_on_clock(void (*look)(void *context, int64_t ns), void *context);
/* Every thread of the block must come, to the same site. */
void simt_barrier(const char *file, int line);

enum {
    SIMT_SYNC,
    SIMT_INDEX, /* shuffles: operand is the source lane, or the distance */
    SIMT_UP,
    SIMT_DOWN,
    SIMT_XOR,
    SIMT_BALLOT,
    SIMT_ADD, /* of 32-bit integers */
    SIMT_MIN_I32,
    SIMT_MAX_I32,
    SIMT_MIN_U32,
    SIMT_MAX_U32
};

/* One warp operation of the lanes in mask, which all must come with the same kind and mask. Returns
 * this lane's result. width: of a shuffle's groups, a power of two up to 32. */
uint64_t simt_warp(int kind, unsigned mask, uint64_t value, unsigned operand, unsigned width,
                   const char *file, int line);

#ifdef __cplusplus
}
#endif

#endif
