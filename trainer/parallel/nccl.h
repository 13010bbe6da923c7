/* nccl.h: the one door to NCCL, opened by the first run that wants its engine. Loaded at run time
 * and not linked, as cuBLAS is: a machine without it learns which file is missing. */
#ifndef TESSERA_TRAINER_PARALLEL_NCCL_H
#define TESSERA_TRAINER_PARALLEL_NCCL_H

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

/* Of a library from 2.28 on, where the header is as well: nccl_window.c. */
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
    void *TeamLsa; /* its type is C++'s: nccl_lsa.h */
    bool windows;  /* all of these are there */
    int version;
    ncclResult_t (*CommRevoke)(ncclComm_t comm, int flags); /* since 2.28.9; NULL before */
} nccl_library;

/* Before it is loaded: a library that stands in for NCCL. NULL: libnccl.so.2, wherever it is. */
void nccl_is_at(const char *path);
/* Loads it once per process. UNAVAILABLE, with the file that is missing, or a version that cannot
 * do what is asked of it. */
WARN_UNUSED status nccl_open(void);

/* After nccl_open. */
const nccl_library *nccl(void);

#endif
