/* nccl_window.h: the NCCL engine's windows (comm.h), for comm_nccl.c. From NCCL 2.28 on, header and
 * library of one minor version; else UNAVAILABLE, and why. */
#ifndef TESSERA_TRAINER_PARALLEL_NCCL_WINDOW_H
#define TESSERA_TRAINER_PARALLEL_NCCL_WINDOW_H

#include "trainer/parallel/comm.h"

WARN_UNUSED status nccl_window_new(const comm *c, stream *s, size_t bytes, comm_window *out);
WARN_UNUSED status nccl_window_share(const comm *c, stream *s, comm_window *inout);
void nccl_window_free(const comm *c, stream *s, comm_window *w);

#endif
