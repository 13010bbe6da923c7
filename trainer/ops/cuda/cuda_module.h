/* cuda_module.h: what libtessera_cuda.so shows to ops/open.c, its only user
 * (common/program/module.h).
 */
#ifndef TESSERA_OPS_CUDA_MODULE_H
#define TESSERA_OPS_CUDA_MODULE_H

#include "common/program/module.h"
#include "trainer/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The library's one symbol, "tessera_cuda_backend". */
typedef const backend_vtable *(*cuda_module_entry)(const module_host *host);
const backend_vtable *tessera_cuda_backend(const module_host *host);

#ifdef __cplusplus
}
#endif

#endif
