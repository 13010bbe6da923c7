/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_lsa.cc: implements nccl_lsa.h. It is C++ only because NCCL's header is. The address is the
 * one that ncclGetLsaPointer computes on the device. Kernels get it as a plain pointer, so that
 * they are the same without NCCL (tests/simt, a single GPU). */
#include "trainer/parallel/comm/nccl_lsa.h"

#include <stdint.h>

#include <nccl_device.h>

extern "C" int nccl_lsa_version(void)
{
    return NCCL_VERSION_CODE;
}

extern "C" int nccl_lsa_ranks(void *team_lsa, ncclComm_t comm)
{
    return ((decltype(static_cast<ncclTeam_t (*)(ncclComm_t)>(ncclTeamLsa)))team_lsa)(comm).nRanks;
}

extern "C" size_t nccl_lsa_window_bytes(void)
{
    return sizeof(ncclWindow_vidmem);
}

extern "C" void *nccl_lsa_address(const void *window, int rank)
{
    const ncclWindow_vidmem *known = (const ncclWindow_vidmem *)window;
    return known->lsaFlatBase + ((uint64_t)rank * known->stride4G << 32);
}
