/* SPDX-License-Identifier: Apache-2.0 */
/* row.h: joins documents with their decoded images into one row: ids, labels, positions, patches.
 *
 * Documents follow each other, items come in the order of their first appearance. Position ids are
 * those of Qwen3-VL's M-RoPE (get_rope_index in transformers' modeling_qwen3_vl.py) and begin at
 * zero in each document, except that a branch goes on where its sample alone would. This file uses
 * no image library and reads no files. */
#ifndef TESSERA_PREPD_WORKER_ROW_H
#define TESSERA_PREPD_WORKER_ROW_H

#include "common/base/arena.h"
#include "prepd/sample/fit.h"
#include "prepd/sample/text.h"
#include "proto/row/batch.h"

typedef struct document {
    uint64_t sample_id;
    int32_t part;
    chat_text text;        /* with pads; its runs are those of the images, one after another */
    const fit_grid *grids; /* [n_images] */
    int32_t n_images;
    uint8_t *const *patches; /* [n_images] the patches of each (both frames of a pair, for a clip);
                              * NULL, or a NULL entry, stands for zeros; borrowed by the row */
    bool quarantined;        /* its labels are ignored and its patches are zero */
    bool shared;             /* shows the images of the document before it: its tokens refer to the
                              * same visual rows */
    /* How many branches follow this document, if it is a prefix; otherwise 0. A prefix has the
     * sample id and the images of its first branch, part -1, and the text up to where its branches
     * begin. Quarantined means that all its branches are. */
    int32_t branches;
    /* For a branch the tokens of its prefix, otherwise 0. A branch has the text and the grids of
     * its whole sample, from which row_build takes what comes after the prefix, and no patches. */
    int64_t before;
} document;

/* Builds a row whose arrays are in the arena. Its items borrow the documents' patches. No documents
 * give the empty row. ST_BAD_INPUT if a document has no tokens, if its pads do not fit its grids
 * (its text was measured with other grids), or if it shares images that the document before it does
 * not show. ST_INTERNAL if a prefix does not stand before as many branches as it says, or if a
 * branch does not begin with the ids of its prefix, has an image or a label that the prefix cuts
 * off, or ends within it. */
WARN_UNUSED status row_build(const document *docs, int64_t n_docs, arena *memory, row *out);

/* Bytes of the patches of an item with this grid. */
static inline int64_t row_item_bytes(fit_grid grid)
{
    return fit_patches(grid) * (grid.pairs > 0 ? VIDEO_PATCH_BYTES : PATCH_BYTES);
}

/* Writes the position ids of one document of n_tokens tokens to columns [0, n_tokens) of position
 * [3, stride], whose rows are time, height and width. The document shows n_items items with these
 * grids. Each picture, and each pair of frames of a clip, is a run of fit_run_tokens(grid) visual
 * tokens; the runs begin at the tokens run_at, ascending. */
void row_positions(int64_t n_tokens, const int64_t *run_at, const fit_grid *grids, int32_t n_items,
                   int32_t *position, int64_t stride);

#endif
