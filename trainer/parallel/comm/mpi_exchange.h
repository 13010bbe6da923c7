/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_exchange.h: how the MPI engine talks to other ranks: as messages between two ranks, sent and
 * received together and with a time limit. MPI's own collectives block without one. */
#ifndef TESSERA_TRAINER_PARALLEL_COMM_MPI_EXCHANGE_H
#define TESSERA_TRAINER_PARALLEL_COMM_MPI_EXCHANGE_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct mpi_world {
    int rank, size;
    int64_t timeout_ns;             /* for one exchange */
    status (*check)(void *context); /* may be NULL; called while waiting, its error ends the wait */
    bool (*patient)(void *context); /* may be NULL; while it is true the time limit begins anew */
    void *context;                  /* passed to both */
    int groups;           /* how many were made so far, which is also the tag of the next */
    bool broken;          /* an exchange failed: the others may never answer */
    MPI_Request *request; /* [capacity], as status and message are */
    MPI_Status *status;
    struct mpi_message *message;
    int capacity;
} mpi_world;

/* One message, sent or received. */
typedef struct mpi_transfer {
    bool sends;
    int peer; /* rank in the job */
    char *at; /* host memory; only read if it sends */
    int64_t bytes;
} mpi_transfer;

/* Does all transfers of list [count] at once and waits for them. Between two ranks, messages of one
 * tag are matched in the order of the two lists. A transfer of no bytes is left out on both sides.
 * ST_TIMEOUT names the ranks that did not answer; ST_PROTOCOL one that sent another number of
 * bytes; ST_UNAVAILABLE if MPI fails, or an earlier exchange did. */
WARN_UNUSED status mpi_exchange(mpi_world *world, int tag, const mpi_transfer *list, int count);

#endif
