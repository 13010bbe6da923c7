/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_module.h: what libtessera_cuda.so exports to ops/open.c, its only user. How a module is
 * loaded is in common/program/module.h. */
#ifndef TESSERA_TRAINER_OPS_CUDA_MODULE_H
#define TESSERA_TRAINER_OPS_CUDA_MODULE_H

#include "common/program/module.h"
#include "trainer/device/backend.h"
#include "trainer/ops/table.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_module {
    const backend_vtable *backend;
    const ops_table *ops;
} cuda_module;

/* The library's one symbol, "tessera_cuda_backend". It returns the backend and its op table, both
 * static; `host` gives the library the program's logging and status functions. */
typedef cuda_module (*cuda_module_entry)(const module_host *host);
cuda_module tessera_cuda_backend(const module_host *host);

#ifdef __cplusplus
}
#endif

#endif
