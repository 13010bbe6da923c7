/* SPDX-License-Identifier: Apache-2.0 */
/* rank_link_find.h: where rank 0 listens, before anyone has met. */
#ifndef TESSERA_TRAINER_PARALLEL_LINK_RANK_LINK_FIND_H
#define TESSERA_TRAINER_PARALLEL_LINK_RANK_LINK_FIND_H

#include <stdbool.h>

#include "common/base/status.h"
#include "trainer/parallel/core/link_core.h"

typedef struct rank_link_place {
    char host[CONTROL_HOST_MAX]; /* of rank 0, as the others reach it */
    int port;
} rank_link_place;

/* Finds where rank 0 listens. The host is MASTER_ADDR if that is set, else loopback if all ranks are
 * on one machine, else the first node of a Slurm step. The port is MASTER_PORT if that is set, else
 * a number made from the id of the mpirun or Slurm job. ST_CONFIG if ranks are on several machines
 * and the machine of rank 0 is not known. */
WARN_UNUSED status rank_link_find(bool one_machine, rank_link_place *out);

#endif
