/* row.h: documents with their decoded images -> one row: ids, labels, positions, patches.
 *
 * Positions are interleaved M-RoPE ids per document from zero (spec section 5); documents follow
 * each other; items in order of appearance. Pure: no image library, no files. */
#ifndef TESSERA_PREPD_WORKER_ROW_H
#define TESSERA_PREPD_WORKER_ROW_H

#include "common/base/arena.h"
#include "prepd/sample/fit.h"
#include "prepd/sample/text.h"
#include "proto/batch.h"

typedef struct document {
    uint64_t sample_id;
    int32_t part;
    chat_text text;        /* with pads; its runs are those of the images one after another */
    const fit_grid *grids; /* [n_images] */
    int32_t n_images;
    uint8_t *const *patches; /* [n_images] u8 patches each, of a clip both frames of a pair; NULL,
                              * or NULL entries: zeros; borrowed for as long as the row */
    bool quarantined;        /* labels ignored, patches zero */
    bool shared; /* shows the images of the document before it: its tokens point to the same rows */
} document;

/* Arrays in the arena; of the documents the patches are kept, as items. No documents: the empty
 * row. Fails with ST_BAD_INPUT where a document's pads do not hold its grids (its text was measured
 * with others) or has no tokens, or shares images that the document before it does not show. */
WARN_UNUSED status row_build(const document *docs, int64_t n_docs, arena *a, row *out);

/* Bytes of an item's patches. */
static inline int64_t row_item_bytes(fit_grid g)
{
    return fit_patches(g) * (g.pairs > 0 ? VIDEO_PATCH_BYTES : PATCH_BYTES);
}

/* Position ids of one document of n tokens with visual items of these grids; their runs, one per
 * picture and one per pair of frames, begin at tokens run_at (ascending) and fill
 * fit_run_tokens(grid) each. Written to position [3, stride] at columns [0, n): streams T, H, W. */
void row_positions(int64_t n, const int64_t *run_at, const fit_grid *grids, int32_t n_items,
                   int32_t *position, int64_t stride);

#endif
