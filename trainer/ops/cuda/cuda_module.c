/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_module.c: the entry point of libtessera_cuda.so (cuda_module.h). */
#include "trainer/ops/cuda_module.h"

extern const backend_vtable backend_cuda;
extern const ops_table ops_cuda;

__attribute__((visibility("default"))) cuda_module tessera_cuda_backend(const module_host *host)
{
    module_enter(host);
    return (cuda_module){&backend_cuda, &ops_cuda};
}
