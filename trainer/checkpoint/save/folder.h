/* SPDX-License-Identifier: Apache-2.0 */
/* folder.h: a folder of checkpoints on disk: what is in it, which checkpoints are whole, and how
 * they appear and disappear.
 *
 *   FOLDER/.lock                               held by the trainer that writes here
 *   FOLDER/step-N/                             a Hugging Face folder, as other tools open it
 *   FOLDER/step-N/adapter/                     the adapters, if there are any (adapter.h)
 *   FOLDER/step-N/training/state.json          how far the run is (progress.h)
 *   FOLDER/step-N/training/quarantine.json     its bad samples, if there are any
 *   FOLDER/step-N/training/rank-R-of-W.safetensors   values and moments (train_state.h)
 *   FOLDER/step-N/training/manifest.json       the seal: size and XXH3-128 of every other file
 *   FOLDER/.step-N.writing, .step-N.trash      half made and half removed; never read
 *
 * A checkpoint appears by one rename after all of it is synced to disk, and disappears by one
 * rename before it is deleted, so a process may die at any instant (README.md). */
#ifndef TESSERA_TRAINER_CHECKPOINT_SAVE_FOLDER_H
#define TESSERA_TRAINER_CHECKPOINT_SAVE_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/status.h"
#include "trainer/checkpoint/save/save_core.h"

#define FOLDER_TRAINING "training"
#define FOLDER_ASIDE    ".export.writing" /* see folder_aside */

/* Locks FOLDER/.lock until folder_unlock or the end of the process. ST_UNAVAILABLE if another
 * process has it; ST_CANT_CREATE if this user cannot write there. On a file system without locks
 * it prints a warning and *out_fd is -1. */
WARN_UNUSED status folder_lock(const char *folder, int *out_fd);
void folder_unlock(int *fd); /* accepts -1 */
/* Deletes a folder and all that it holds; one that does not exist is no error. */
WARN_UNUSED status folder_remove(const char *path);

/* A file whose digest is known already, because whoever wrote it hashed it. */
typedef struct folder_known {
    char name[64]; /* relative to the checkpoint */
    hash128 digest;
} folder_known;
/* Seals the checkpoint at `path`: writes its manifest, synced, with every file below path. Files in
 * known [count] are entered with their given digest; all others are read and hashed. */
WARN_UNUSED status folder_seal(const char *path, const folder_known *known, int count);
/* Checks the seal of the checkpoint at `path`. Of several ranks each reads and hashes every ranks-th
 * file; together they read every byte. ST_BAD_INPUT names a file that is missing or has another size
 * or content, or a manifest that was changed. */
WARN_UNUSED status folder_check(const char *path, int rank, int ranks);

/* *out: the steps of all checkpoints in the folder, rising, in heap memory; a folder that does not
 * exist has none. They are not checked. */
WARN_UNUSED status folder_steps(const char *folder, int64_t **out, int64_t *out_n);
/* Writes the path FOLDER/step-N, or with a kind FOLDER/.step-N.KIND. */
WARN_UNUSED status folder_step_path(char out[STATUS_PATH_MAX], const char *folder, int64_t step,
                                    const char *kind);
/* Renames .step-N.writing to step-N and syncs the folder. A step-N that is there already is swapped
 * out and deleted afterwards, so that at no instant is the step without a whole checkpoint (on file
 * systems that can exchange two names). */
WARN_UNUSED status folder_commit(const char *folder, int64_t step);
/* Does one step of that. *out_absent: it failed since what it renames is not there. */
WARN_UNUSED status folder_commit_step(const char *folder, int64_t step, commit_step what,
                                      bool *out_absent);
/* Removes a checkpoint: renames it to .step-N.trash, then deletes that. */
WARN_UNUSED status folder_drop(const char *folder, int64_t step);
/* Deletes what a process that died left half made or half removed. Prints a warning about what
 * cannot be deleted. */
WARN_UNUSED status folder_tidy(const char *folder);
/* Writes to `out` the path of a temporary folder for the files that will become the folder `path`,
 * so that no one sees them half written: .NAME.writing beside it, or .export.writing inside it if
 * it exists already. What an earlier process left there is deleted. */
WARN_UNUSED status folder_aside(const char *path, char out[STATUS_PATH_MAX]);
/* Whether the folder `path` is there and has in it nothing but what an earlier process wrote aside
 * (folder_aside) and did not put in place, so that it counts as empty. */
bool folder_is_unfinished(const char *path);
/* Puts the folder `aside`, whose files are synced, in the place of `path`: by one rename if there
 * is nothing yet; else file by file as folder_publish does, with files of other names staying. */
WARN_UNUSED status folder_put(const char *aside, const char *path);

/* Puts the model of step N into FOLDER itself, for other tools: a hard link FOLDER/NAME to every
 * file of step-N, and FOLDER/adapter/NAME to those of its adapter, or a copy if the file system has
 * no links. Each replaces its predecessor by a rename. Weight files in FOLDER that the step does
 * not have are deleted. */
WARN_UNUSED status folder_publish(const char *folder, int64_t step);

/* ---- which checkpoints are removed (prune.c): those that checkpoint.keep_latest_k does not keep,
 * and more if the disk has no room for another one ---- */

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
