/* speed.h: how fast this device is: what mfu is a share of, and what benches time with.
 *
 * Time is a device's own, between two events (on the CPU the clock). */
#ifndef TESSERA_TRAINER_REPORT_SPEED_H
#define TESSERA_TRAINER_REPORT_SPEED_H

#include "trainer/device/backend.h"

/* FLOP/s that mfu is a share of: tflops, of metrics.peak_tflops; where that is 0 the maker's figure
 * of a device that is known by its name; of another what it reaches on a large product, within a
 * second. Says which in the log, of the last two. A GPU without memory for that product: 0. */
WARN_UNUSED status speed_peak(stream *s, double tflops, double *out);
/* The maker's figure, dense bf16; 0: this device is not known. */
double speed_known(const device *d);

/* FLOP/s of a square product in act, as speed_time has it. */
WARN_UNUSED status speed_product(stream *s, int64_t side, double limit_s, double *out);

/* Median device time of one call, over as many calls as fit into limit_s, 5 at least, after a
 * warm-up. */
typedef status (*speed_call)(stream *s, const void *context);
WARN_UNUSED status speed_time(stream *s, speed_call call, const void *context, double limit_s,
                              double *out_ns);

/* n numbers of `size` bytes (2: bf16, 4: float, 8: double) in (-1, 1), on the device: timing zeros
 * flatters. */
WARN_UNUSED status speed_fill(stream *s, void *dst, int64_t n, size_t size);

/* Sides of the square products that say what a device can do. */
enum { SPEED_GPU_SIDE = 8192 /* that published ceilings are of */, SPEED_CPU_SIDE = 768 };
bool speed_is_gpu(const device *d);

#endif
