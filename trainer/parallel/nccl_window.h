/* nccl_window.h: windows of the NCCL engine, with the contracts of comm_engine's window_reach,
 * window_new, window_share and window_free (comm.h). For comm_nccl.c.
 *
 * They need NCCL 2.28 or later, header and library of the same minor version; otherwise
 * nccl_window_reach and nccl_window_new return ST_UNAVAILABLE and the note says why. */
#ifndef TESSERA_TRAINER_PARALLEL_NCCL_WINDOW_H
#define TESSERA_TRAINER_PARALLEL_NCCL_WINDOW_H

#include "trainer/parallel/comm.h"

WARN_UNUSED status nccl_window_reach(const comm *group);
WARN_UNUSED status nccl_window_new(const comm *group, stream *queue, size_t bytes,
                                   comm_window *out);
WARN_UNUSED status nccl_window_share(const comm *group, stream *queue, comm_window *inout);
void nccl_window_free(const comm *group, stream *queue, comm_window *window);

#endif
