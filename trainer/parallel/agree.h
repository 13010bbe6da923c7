/* agree.h: ranks that each do something by themselves, which one of them may fail at, go on or fail
 * all. */
#ifndef TESSERA_TRAINER_PARALLEL_AGREE_H
#define TESSERA_TRAINER_PARALLEL_AGREE_H

#include "trainer/parallel/comm.h"

/* mine: how this rank is; n: what must be the same on all. Every rank of c calls it, outside of
 * steps. ST_OK where all are well; else the code of the first that is not, on all of them, with its
 * text and rank; ST_PROTOCOL where n differs. Of one rank: mine. */
WARN_UNUSED status comm_agree(const comm *c, comm_at at, status mine, int64_t n);

#endif
