/* filter_kernels.h: the implementations of the filter, which all give the same bytes. Private to
 * proto. A test compares filter_avx2 with filter_plain. */
#ifndef TESSERA_PROTO_FILTER_KERNELS_H
#define TESSERA_PROTO_FILTER_KERNELS_H

#include <stdint.h>

enum { FILTER_SIDE = 16, FILTER_PLANE = FILTER_SIDE * FILTER_SIDE };

/* Both functions work on one frame of a patch. Its red, green and blue planes [16, 16] begin
 * `channel` bytes apart, in the input as in the output. */
typedef struct filter_kernels {
    void (*apply)(const uint8_t *in, int64_t channel, uint8_t *out);
    void (*undo)(const uint8_t *in, int64_t channel, uint8_t *out);
} filter_kernels;

extern const filter_kernels filter_plain; /* plain C, the reference */
extern const filter_kernels filter_avx2;  /* NULL members if the compiler cannot make AVX2 code */

/* The fastest implementation that this processor can run. */
const filter_kernels *filter_kernels_here(void);

#endif
