/* prune.h: which checkpoints of a folder are removed: those that checkpoint.keep_latest_k does not
 * keep, and more if the disk has no room for another one. */
#ifndef TESSERA_TRAINER_CHECKPOINT_PRUNE_H
#define TESSERA_TRAINER_CHECKPOINT_PRUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

/* Removes all checkpoints but the newest `keep` and the one with the lowest held-out loss. keep 0:
 * removes none. */
WARN_UNUSED status prune_by_policy(const char *folder, int64_t keep);

/* Makes room before a checkpoint is written. While the disk has less room than the checkpoint of
 * step `whole` takes, it removes the oldest of the others, the one with the lowest held-out loss
 * last, and prints a warning for each. It never removes the one of step `whole`, the last that is
 * known to be whole. It removes nothing if the system does not say how much room there is, if
 * all others together would not make enough, or if keep is 0, which asks for all to be kept. */
WARN_UNUSED status prune_for_room(const char *folder, int64_t whole, int64_t keep);

/* To be called after a write that found the disk full all the same (because of a quota, or of room
 * that the system does not count): removes one checkpoint by the same rules. *out_gone: whether it
 * did. */
WARN_UNUSED status prune_one(const char *folder, int64_t whole, int64_t keep, bool *out_gone);

#endif
