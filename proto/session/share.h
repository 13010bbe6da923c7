/* SPDX-License-Identifier: Apache-2.0 */
/* share.h: which rows of a recording one data-parallel consumer gets.
 *
 * Rows are shared out step by step exactly as the daemon does it (assign.h), from costs that are
 * read from the rows' blocks as they are needed. client.c uses this to replay a file, prepd to
 * serve one. */
#ifndef TESSERA_PROTO_SESSION_SHARE_H
#define TESSERA_PROTO_SESSION_SHARE_H

#include "proto/session/client.h"
#include "proto/message/record.h"

typedef struct share share;

/* The share of rank options->rank. Steps of options->step_rows rows begin at row options->skip; end
 * is how many rows there are, counted over all loops. record, coder and options->path are borrowed
 * and must outlive it. ST_CONFIG if a step has fewer rows than there are ranks: a rank without rows
 * would search for ever. */
WARN_UNUSED status share_new(const replay_options *options, const record_reader *record,
                             codec *coder, uint64_t end, share **out);
void share_free(share **held);
/* Enters at *inout_row, the row that a cursor names: the one after a row that some rank had. If
 * that was the rank's last row of its step, the cursor stands for the whole step, and *inout_row
 * moves to the next step, whichever rank asks; so the cursors of a step mean the same for all ranks
 * once the step is complete. There must be as many ranks as when the cursor was made. */
WARN_UNUSED status share_enter(share *rows, uint64_t *inout_row);
/* Moves *inout_row on to the first row of this rank that is not before it, or to the end. Rows
 * count over all loops. */
WARN_UNUSED status share_find(share *rows, uint64_t *inout_row);

#endif
