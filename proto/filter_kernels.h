/* filter_kernels.h: the filter's ways to be computed. All give the same bytes. Private to proto. */
#ifndef TESSERA_PROTO_FILTER_KERNELS_H
#define TESSERA_PROTO_FILTER_KERNELS_H

#include <stdint.h>

enum { FILTER_SIDE = 16, FILTER_PLANE = FILTER_SIDE * FILTER_SIDE };

/* One frame of a patch: its red, green and blue planes [16, 16] u8 lie `channel` bytes apart. */
typedef struct filter_kernels {
    void (*apply)(const uint8_t *in, int64_t channel, uint8_t *out);
    void (*undo)(const uint8_t *in, int64_t channel, uint8_t *out);
} filter_kernels;

extern const filter_kernels filter_plain; /* the reference */
extern const filter_kernels filter_avx2;  /* members NULL where the compiler has no AVX2 */

/* The fastest this processor can. */
const filter_kernels *filter_kernels_here(void);

#endif
