/* dry_run_folder.h: the folder of a dry run, which is removed however the run ends. A second
 * process waits for the end of the run, even if it is killed, and removes the folder. */
#ifndef TESSERA_TRAINER_CHECK_DRY_RUN_FOLDER_H
#define TESSERA_TRAINER_CHECK_DRY_RUN_FOLDER_H

#include <stdbool.h>
#include <sys/types.h>

#include "common/base/status.h"

typedef struct dry_folder {
    char path[STATUS_PATH_MAX]; /* "": there is none */
    pid_t remover;              /* the process that removes the folder */
    int held; /* end of a pipe, open while this process runs; the remover waits for it to close */
} dry_folder;

/* Makes a folder below TMPDIR. name: the name of a folder that several ranks share; NULL: a folder
 * of this process alone. */
WARN_UNUSED status dry_folder_open(const char *name, dry_folder *out);
/* keep: leaves the folder to another rank that shares it. Does nothing for a folder that was never
 * opened. */
void dry_folder_close(dry_folder *folder, bool keep);

#endif
