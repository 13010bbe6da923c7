/* SPDX-License-Identifier: Apache-2.0 */
/* nccl.h: the one door to NCCL. The library is loaded when a run first wants its engine and is not
 * linked, as cuBLAS is, so that the trainer runs on machines without it and can say which file is
 * missing. Its functions are called as nccl_api()->AllGather(..), without their prefix. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_NCCL_H
#define TESSERA_TRAINER_PARALLEL_COMM_NCCL_H

#include <stdbool.h>

#include <nccl.h>

#include "common/base/status.h"

#define NCCL_FUNCTIONS(X)                                                                          \
    X(GetVersion)                                                                                  \
    X(GetUniqueId)                                                                                 \
    X(GetErrorString)                                                                              \
    X(GetLastError)                                                                                \
    X(CommInitRankConfig)                                                                          \
    X(CommSplit)                                                                                   \
    X(CommFinalize)                                                                                \
    X(CommDestroy)                                                                                 \
    X(CommAbort)                                                                                   \
    X(CommGetAsyncError)                                                                           \
    X(AllGather)                                                                                   \
    X(ReduceScatter)                                                                               \
    X(AllReduce)                                                                                   \
    X(Broadcast)                                                                                   \
    X(Send)                                                                                        \
    X(Recv)                                                                                        \
    X(GroupStart)                                                                                  \
    X(GroupEnd)

/* Functions that comm_nccl.c needs. The library has them from 2.28 on, and they are declared here
 * if the header is of 2.28 or later too. */
#ifdef TESSERA_NCCL_WINDOWS
#define NCCL_WINDOW_FUNCTIONS(X)                                                                   \
    X(MemAlloc)                                                                                    \
    X(MemFree)                                                                                     \
    X(CommWindowRegister)                                                                          \
    X(CommWindowDeregister)
#else
#define NCCL_WINDOW_FUNCTIONS(X)
#endif

typedef struct nccl_library {
#define NCCL_FIELD(name) __typeof__(&nccl##name) name;
    NCCL_FUNCTIONS(NCCL_FIELD)
    NCCL_WINDOW_FUNCTIONS(NCCL_FIELD)
#undef NCCL_FIELD
    void *TeamLsa; /* a function of a C++ type (nccl_lsa.h) */
    bool windows;  /* TeamLsa and all NCCL_WINDOW_FUNCTIONS were found */
    int version;   /* as NCCL_VERSION_CODE */
    ncclResult_t (*CommRevoke)(ncclComm_t comm, int flags); /* since 2.28.9; NULL before */
} nccl_library;

/* Loads the library once per process. ST_UNAVAILABLE names the file or the function that is
 * missing, or a version that is too old. */
WARN_UNUSED status nccl_open(void);

/* The functions, after nccl_open has succeeded. */
const nccl_library *nccl_api(void);

/* Sets what a run needs where the user has set nothing. deterministic: sums repeat bit for bit on
 * the same machines. tell: logs NCCL's version and all of its settings, and warns of a setting of
 * CUDA that makes transfers wait. Call after nccl_open. */
void nccl_settings(bool deterministic, bool tell);

#endif
