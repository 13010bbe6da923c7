/* cuda_module.h: what libtessera_cuda.so shows to load.c, its only user.
 *
 * The library is opened at run time, so that one trainer starts with and without a driver. It can
 * not see the program's symbols; the notes of failures are kept, and events are told, by the
 * program's functions, given at the start, so that FAIL, TRY and log_info mean the same on both
 * sides. */
#ifndef TESSERA_DEVICE_CUDA_MODULE_H
#define TESSERA_DEVICE_CUDA_MODULE_H

#include "trainer/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of common/status.h and common/log.h. */
typedef struct cuda_module_host {
    status (*fail)(status code, const char *source, int source_line, const char *input,
                   int64_t line, int64_t offset, const char *fmt, ...);
    status (*context)(status code, const char *fmt, ...);
    const char *(*text)(void);
    void (*clear)(void);
    void (*log)(int level, const char *fmt, ...);
} cuda_module_host;

/* The library's one symbol, "tessera_cuda_backend". */
typedef const backend_vtable *(*cuda_module_entry)(const cuda_module_host *host);
const backend_vtable *tessera_cuda_backend(const cuda_module_host *host);

#ifdef __cplusplus
}
#endif

#endif
