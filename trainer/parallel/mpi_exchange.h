/* mpi_exchange.h: everything the MPI engine says to other ranks, as messages between two of them
 * with a time limit. Blocking collectives of MPI have none. */
#ifndef TESSERA_TRAINER_PARALLEL_MPI_EXCHANGE_H
#define TESSERA_TRAINER_PARALLEL_MPI_EXCHANGE_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct mpi_world {
    int rank, size;
    int64_t timeout_ns;
    status (*check)(void *context); /* asked while waiting */
    bool (*patient)(
        void *context); /* NULL: never; else the time limit begins anew while it says so */
    void *context;
    int groups;           /* made so far: the next one's tag */
    bool broken;          /* an exchange failed: others may never answer */
    MPI_Request *request; /* [capacity] */
    MPI_Status *status;
    struct mpi_message *message;
    int capacity;
} mpi_world;

typedef struct mpi_transfer {
    bool sends;
    int peer; /* rank in the world */
    char *at; /* host memory; of a send only read */
    int64_t bytes;
} mpi_transfer;

/* Does all of them at once; between two ranks those of one tag meet in the order of the lists.
 * Transfers of no bytes do not happen, on either side. ST_TIMEOUT names the ranks that did not
 * answer, ST_PROTOCOL one that sent another number of bytes. */
WARN_UNUSED status mpi_exchange(mpi_world *w, int tag, const mpi_transfer *t, int n);

#endif
