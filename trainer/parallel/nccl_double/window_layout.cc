/* window_layout.cc: what NCCL's C++ header says of a window's handle, for windows.c. */
#include <stddef.h>
#include <stdint.h>

#include <nccl_device.h>

extern "C" size_t shim_window_bytes(void)
{
    return sizeof(ncclWindow_vidmem);
}

extern "C" void shim_window_fill(ncclWindow_t w, void *base, uint32_t stride4g, int rank)
{
    w->lsaFlatBase = (char *)base;
    w->stride4G = stride4g;
    w->lsaRank = w->worldRank = rank;
}

extern "C" void *shim_window_base(ncclWindow_t w)
{
    return w->lsaFlatBase;
}
