/* folder.h: a folder of checkpoints on disk: which are whole, and how one comes and goes.
 *
 *   FOLDER/step-N/                     a Hugging Face folder, as other tools open it
 *   FOLDER/step-N/training/state.json          progress.h
 *   FOLDER/step-N/training/rank-R-of-W.safetensors   train_state.h
 *   FOLDER/step-N/training/manifest.json       every other file with its size and XXH3-128
 *   FOLDER/.step-N.writing, .step-N.trash      half made, half removed: never read
 *
 * A checkpoint appears by one rename after all of it is synced, and goes by one rename before it is
 * deleted, so a process may die at any instant. */
#ifndef TESSERA_TRAINER_CHECKPOINT_FOLDER_H
#define TESSERA_TRAINER_CHECKPOINT_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/status.h"

#define FOLDER_TRAINING "training"

/* Holds FOLDER/.lock until folder_unlock or the end of the process. ST_UNAVAILABLE where another
 * process does. A file system without locks is warned of: *out_fd -1. */
WARN_UNUSED status folder_lock(const char *folder, int *out_fd);
void folder_unlock(int *fd); /* accepts -1 */
/* The folder with all it holds; absent is fine. */
WARN_UNUSED status folder_remove(const char *path);

/* A file whose digest who wrote it has found already. */
typedef struct folder_known {
    char name[64]; /* below path */
    hash128 digest;
} folder_known;
/* Lists and hashes every file below path but those n into its manifest, all of it synced. */
WARN_UNUSED status folder_seal(const char *path, const folder_known *known, int n);
/* ST_BAD_INPUT names the file that is missing, of another size or content. Of several ranks each
 * looks at its share of the files, about as many bytes as any other: together they have seen
 * all. */
WARN_UNUSED status folder_check(const char *path, int rank, int ranks);

/* Steps of the checkpoints in folder, rising; heap. Whether they are whole is not asked. */
WARN_UNUSED status folder_steps(const char *folder, int64_t **out, int64_t *out_n);
/* FOLDER/step-N, or with kind: FOLDER/.step-N.KIND */
WARN_UNUSED status folder_step_path(char out[STATUS_PATH_MAX], const char *folder, int64_t step,
                                    const char *kind);
/* Moves .step-N.writing to step-N; one that is there already moves aside and
 * is deleted only when the new one has its name. */
WARN_UNUSED status folder_commit(const char *folder, int64_t step);
WARN_UNUSED status folder_drop(const char *folder, int64_t step);
/* Deletes what a process that died left half made or half removed; warns of what stays. */
WARN_UNUSED status folder_tidy(const char *folder);
/* FOLDER/NAME for every file of step-N itself (not training/): links, or copies where the file
 * system has none; each replaces its predecessor by a rename. Weight files under other names go. */
WARN_UNUSED status folder_publish(const char *folder, int64_t step);

#endif
