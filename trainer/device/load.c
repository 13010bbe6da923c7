/* load.c: which backend a run gets. The CPU is linked in; CUDA is a library of its own, looked for
 * only when wanted, so that one binary starts with and without a driver. */
#include "trainer/device/backend.h"

#include "common/conf.h"

status device_open(int kind, int index, int threads, device **out)
{
    if (kind == BACKEND_CUDA)
        return FAIL(ST_UNAVAILABLE, "this build has no CUDA backend; use backend cpu");
    return backend_cpu.open(index, threads, out);
}

void device_close(device **d)
{
    if (!*d)
        return;
    (*d)->v->close(*d);
    *d = NULL;
}
