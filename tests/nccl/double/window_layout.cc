/* SPDX-License-Identifier: Apache-2.0 */
/* window_layout.cc: the layout of a window's handle, which only NCCL's C++ header has; for
 * windows.c. */
#include <stddef.h>
#include <stdint.h>

#include <nccl_device.h>

extern "C" size_t shim_window_bytes(void)
{
    return sizeof(ncclWindow_vidmem);
}

extern "C" void shim_window_fill(ncclWindow_t window, void *base, uint32_t stride4g, int rank)
{
    window->lsaFlatBase = (char *)base;
    window->stride4G = stride4g;
    window->lsaRank = window->worldRank = rank;
}

extern "C" void *shim_window_base(ncclWindow_t window)
{
    return window->lsaFlatBase;
}
