/* nccl_settings.h: the environment variables that decide how NCCL works, before a communicator
 * reads them. For nccl_world.c. */
#ifndef TESSERA_TRAINER_PARALLEL_NCCL_SETTINGS_H
#define TESSERA_TRAINER_PARALLEL_NCCL_SETTINGS_H

#include <stdbool.h>

/* Sets what a run needs where the user has set nothing. deterministic: sums repeat bit for bit on
 * the same machines. tell: logs NCCL's version and all of its settings, and warns of a setting of
 * CUDA that makes transfers wait. Call after nccl_open. */
void nccl_settings(bool deterministic, bool tell);

#endif
