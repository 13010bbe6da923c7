/* cuda_module.h: what libtessera_cuda.so shows to load.c, its only user.
 *
 * The library is opened at run time, so that one trainer starts with and without a driver. It can
 * not see the program's symbols; failures are reported through the function given at the start. */
#ifndef TESSERA_DEVICE_CUDA_MODULE_H
#define TESSERA_DEVICE_CUDA_MODULE_H

#include "trainer/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* status_fail of common/status.h */
typedef status (*cuda_module_fail)(status code, const char *source, int source_line,
                                   const char *input, int64_t line, int64_t offset, const char *fmt,
                                   ...);
/* The library's one symbol, "tessera_cuda_backend". */
typedef const backend_vtable *(*cuda_module_entry)(cuda_module_fail fail);
const backend_vtable *tessera_cuda_backend(cuda_module_fail fail);

#ifdef __cplusplus
}
#endif

#endif
