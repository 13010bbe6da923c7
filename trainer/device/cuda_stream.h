/* cuda_stream.h: what the CUDA ops may ask of their stream, besides its handle (stream.handle, a
 * cudaStream_t): facts of the GPU, scratch memory, and how a refused launch is told.
 *
 * Nothing of the toolkit is named here, so that the kernels' host build answers the same calls. */
#ifndef TESSERA_DEVICE_CUDA_STREAM_H
#define TESSERA_DEVICE_CUDA_STREAM_H

#include "trainer/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_facts {
    int sm;              /* 90: compute capability 9.0 */
    int multiprocessors; /* 132 on an H200 */
    int shared_bytes;    /* most dynamic shared memory a block may ask for */
    int64_t l2_bytes;
} cuda_facts;

const cuda_facts *cuda_facts_of(const stream *s);

/* At least `bytes`, aligned to 256, for the work queued by one op: the next op on this stream may
 * get the same memory. It grows when a larger shape comes first, which while a step is captured is
 * an error; blocks that graphs may know stay until the stream goes. NO_MEMORY. */
WARN_UNUSED status cuda_scratch(stream *s, size_t bytes, void **out);

/* After a launch: BAD_DEVICE with the op's name and CUDA's words where it was refused. */
WARN_UNUSED status cuda_launched(const stream *s, const char *op);

#ifdef __cplusplus
}
#endif

#endif
