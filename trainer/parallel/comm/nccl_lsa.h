/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_lsa.h: what only NCCL's C++ header nccl_device.h (2.28 and later) says of windows: which
 * ranks reach each other's memory by load and store (NCCL's LSA team), and at which address. For
 * comm_nccl.c. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_NCCL_LSA_H
#define TESSERA_TRAINER_PARALLEL_COMM_NCCL_LSA_H

#include <stddef.h>

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NCCL_VERSION_CODE of the header, whose memory layouts the functions below use. */
int nccl_lsa_version(void);
/* How many ranks of the communicator reach each other, this one included. team_lsa: the function
 * ncclTeamLsa of the library that was loaded. */
int nccl_lsa_ranks(void *team_lsa, ncclComm_t comm);
/* Bytes of the record in device memory that a window's handle points to. */
size_t nccl_lsa_window_bytes(void);
/* The device address of rank `rank`'s memory. window: a copy of that record in host memory. */
void *nccl_lsa_address(const void *window, int rank);

#ifdef __cplusplus
}
#endif

#endif
