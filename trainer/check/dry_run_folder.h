/* dry_run_folder.h: the folder of a dry run, which is removed however the run ends: a process
 * beside it waits for its end and removes the folder, also where the run was killed. */
#ifndef TESSERA_TRAINER_CHECK_DRY_RUN_FOLDER_H
#define TESSERA_TRAINER_CHECK_DRY_RUN_FOLDER_H

#include <stdbool.h>
#include <sys/types.h>

#include "common/base/status.h"

typedef struct dry_folder {
    char path[STATUS_PATH_MAX]; /* "": there is none */
    pid_t remover;
    int held; /* open while this process runs */
} dry_folder;

/* Below TMPDIR. name: of ranks that share one; NULL: of this process alone. */
WARN_UNUSED status dry_folder_open(const char *name, dry_folder *out);
/* keep: another rank that shares it removes it. Accepts one that was not opened. */
void dry_folder_close(dry_folder *f, bool keep);

#endif
