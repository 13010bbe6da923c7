/* prune.h: which checkpoints of a folder are removed: by checkpoint.keep_latest_k, and before that
 * where the disk has no room for one more. */
#ifndef TESSERA_TRAINER_CHECKPOINT_PRUNE_H
#define TESSERA_TRAINER_CHECKPOINT_PRUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

/* All but the newest `keep` and the one with the lowest held-out loss go; keep 0: none. */
WARN_UNUSED status prune_by_policy(const char *folder, int64_t keep);

/* Before a checkpoint is written: while the disk has less room than the whole one of step `whole`
 * takes, the oldest other goes, the one with the lowest held-out loss after all others; each is
 * warned of. Never that of `whole`, the last that is known to be whole. Where the system does not
 * tell how much room there is, or all others together would not make enough, nothing goes. keep as
 * above: with 0, which asks for all to be kept, none goes. */
WARN_UNUSED status prune_for_room(const char *folder, int64_t whole, int64_t keep);

/* After a write that found the disk full all the same (a quota, or room that is not told of): the
 * same one goes, unless all others would not make enough. *out_gone: it did. */
WARN_UNUSED status prune_one(const char *folder, int64_t whole, int64_t keep, bool *out_gone);

/* Did this thread's last failure come from a disk without room, or from a quota? */
bool prune_was_full(void);

#endif
