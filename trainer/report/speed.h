/* SPDX-License-Identifier: Apache-2.0 */
/* speed.h: how fast this device is: the peak that mfu is a share of, and the timing that the
 * benches use. Times are taken on the device, between two events; on the CPU an event is the clock.
 */
#ifndef TESSERA_TRAINER_REPORT_SPEED_H
#define TESSERA_TRAINER_REPORT_SPEED_H

#include "trainer/device/backend.h"

/* The peak that mfu is a share of. */
typedef struct peak_rate {
    double flops;   /* FLOP/s; 0: not known */
    bool measured;  /* here, on the CPU, so that it may be measured again */
    int tries_left; /* how often it is still measured again */
    bool told;      /* the user knows that there is no mfu */
} peak_rate;

/* Finds the peak. tflops is metrics.peak_tflops. Where that is 0, it is the maker's figure if the
 * device is known by its name, and otherwise what the device reaches on a large matrix product,
 * measured within a second; the log says which of the two. It is not known for a GPU that has no
 * memory left for that product. */
WARN_UNUSED status speed_peak(stream *stream, double tflops, peak_rate *out);
/* What share of the peak `reached` FLOP/s are, from 0 to 1; NAN where that cannot be known.
 *
 * More than the whole peak shows that the peak is wrong, and far more than a step usually reaches
 * makes it doubtful. On the CPU it was then measured while other programs had the cores, so it is
 * measured again, which takes about as long as the first time, but only a few times in a run, and
 * the largest figure stands. If it is still too low, or
 * was given or known by the device's name, the share is not known, which is warned of once. */
WARN_UNUSED status speed_share(stream *stream, double reached, peak_rate *inout, double *out);
/* The maker's figure for dense bf16 products, in FLOP/s; 0: this device is not known. */
double speed_known(const device *device);

/* FLOP/s of a square matrix product in the type of activations, timed as speed_time does. */
WARN_UNUSED status speed_product(stream *stream, int64_t side, double limit_s, double *out);

/* Median device time of one call, in nanoseconds. After a warm-up it makes as many calls as fit
 * into limit_s seconds, but at least 5. */
typedef status (*speed_call)(stream *stream, const void *context);
WARN_UNUSED status speed_time(stream *stream, speed_call call, const void *context, double limit_s,
                              double *out_ns);

/* Fills device memory with `bytes` random numbers of `size` bytes (2: bf16, 4: float, 8: double) in
 * (-1, 1). A device that multiplies zeros uses less power and looks faster than it is. */
WARN_UNUSED status speed_fill(stream *stream, void *dst, int64_t bytes, size_t size);

/* Sides of the square products that are measured. 8192 is the size for which ceilings of GPUs are
 * published. */
enum { SPEED_GPU_SIDE = 8192, SPEED_CPU_SIDE = 768 };
bool speed_is_gpu(const device *device);

#endif
