/* cuda_module.c: the way into libtessera_cuda.so. */
#include "trainer/ops/cuda/cuda_module.h"

extern const backend_vtable backend_cuda;

__attribute__((visibility("default"))) const backend_vtable *
tessera_cuda_backend(const module_host *host)
{
    module_enter(host);
    return &backend_cuda;
}
