/* nccl_lsa.h: what only NCCL's C++ header says of windows (nccl_device.h, 2.28): who reaches whom
 * by load and store (LSA), and at which address. For nccl_window.c. */
#ifndef TESSERA_TRAINER_PARALLEL_NCCL_LSA_H
#define TESSERA_TRAINER_PARALLEL_NCCL_LSA_H

#include <stddef.h>

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NCCL_VERSION_CODE of the header, whose layouts these are. */
int nccl_lsa_version(void);
/* Ranks of the communicator that reach each other. team_lsa: ncclTeamLsa of the loaded library. */
int nccl_lsa_ranks(void *team_lsa, ncclComm_t comm);
/* Bytes of what a window handle points to in device memory, and rank `rank`'s address by a copy of
 * it. */
size_t nccl_lsa_window_bytes(void);
void *nccl_lsa_address(const void *window, int rank);

#ifdef __cplusplus
}
#endif

#endif
