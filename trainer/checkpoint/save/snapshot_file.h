/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot_file.h: a file of one rank that holds copies of its values and moments and outlives the
 * process, since it lies in shared memory (/dev/shm) or in a folder that the user names.
 *
 * It has two sides. Each has room for one copy, so one side stays whole while the other is written:
 *
 *   0                 head: version, run, sizes of the blocks, hash of the layout's text, own hash
 *   4096, 8192        a record for each side: step, hash of every block, hash of the text, own hash
 *   12288             the layout's text: names and sizes of what the blocks hold
 *   head.data         side 0: its blocks, each on its own page; then those of side 1
 *   head.text         side 0: a text, the run's state; 16 MiB further on that of side 1
 *
 * snapshot_file_begin makes a record invalid, and snapshot_file_end writes it last, after data,
 * hashes and text. A process can therefore be killed at any instant: a side whose record has its
 * own hash was whole when that was written, and snapshot_file_check tells whether it still is. The
 * file does not survive the machine, so nothing is synced. Room for both sides is taken when the
 * file is made, because a write beyond the end of a full file system would kill the process. */
#ifndef TESSERA_TRAINER_CHECKPOINT_SAVE_SNAPSHOT_FILE_H
#define TESSERA_TRAINER_CHECKPOINT_SAVE_SNAPSHOT_FILE_H

#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/status.h"

enum { SNAPSHOT_BLOCKS = 8, SNAPSHOT_SIDES = 2 };

/* What a file must have for a run to use it. */
typedef struct snapshot_shape {
    hash128 run;        /* tells this run from others */
    const char *layout; /* names and sizes of what the blocks hold; borrowed */
    int blocks;
    int64_t bytes[SNAPSHOT_BLOCKS]; /* [blocks] the size of each */
} snapshot_shape;

typedef struct snapshot_file snapshot_file;

/* Opens the file of an earlier process. ST_NO_INPUT if there is none; ST_BAD_INPUT, with the
 * reason, if it is damaged, of another run, or holds something else; ST_CONFIG if it is not this
 * user's. The shape is copied, but for its text. */
WARN_UNUSED status snapshot_file_open(const char *path, const snapshot_shape *shape,
                                      snapshot_file **out);
/* Bytes that the file system of `folder`, or on tmpfs the machine's memory, has room for.
 * ST_CANT_CREATE if there is no such folder. */
WARN_UNUSED status snapshot_file_space(const char *folder, double *out);
/* ST_CANT_CREATE if the file system of `folder`, or the memory that it takes, has no room for the
 * files of `ranks` ranks of this size. */
WARN_UNUSED status snapshot_file_room(const char *folder, const snapshot_shape *shape, int ranks);
/* Makes the file, in place of one that is there, with no whole side. ST_CANT_CREATE, with both
 * sizes, if there is no room for it. */
WARN_UNUSED status snapshot_file_make(const char *path, const snapshot_shape *shape,
                                      snapshot_file **out);
/* Bytes that a file of this shape takes, without its texts. */
int64_t snapshot_file_bytes(const snapshot_shape *shape);
/* Ends its use; the file stays. Accepts a pointer to NULL. */
void snapshot_file_close(snapshot_file **held);

/* The step of which this side has a copy; 0: it is not whole. Its blocks are not compared with
 * their hashes. */
int64_t snapshot_file_step(const snapshot_file *file, int side);
/* Compares every block of a side with its hash, on so many threads. ST_BAD_INPUT names the block
 * that differs. */
WARN_UNUSED status snapshot_file_check(const snapshot_file *file, int side, int threads);
/* *out: the text of a side, in heap memory. ST_BAD_INPUT if it differs from its hash. */
WARN_UNUSED status snapshot_file_text(const snapshot_file *file, int side, char **out);
/* The memory of a block. */
void *snapshot_file_block(const snapshot_file *file, int side, int block);
/* The memory of all blocks of both sides. */
void *snapshot_file_memory(const snapshot_file *file, int64_t *out_bytes);

/* Makes a side invalid, since its blocks are about to be written. */
WARN_UNUSED status snapshot_file_begin(snapshot_file *file, int side);
/* Hashes the blocks of a side, and makes it whole. */
WARN_UNUSED status snapshot_file_end(snapshot_file *file, int side, int64_t step, const char *text);

#endif
