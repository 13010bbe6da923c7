/* row.h: documents with their decoded images -> one row: ids, labels, positions, patches.
 *
 * Positions are interleaved M-RoPE ids per document from zero (spec section 5); documents follow
 * each other; items in order of appearance. */
#ifndef TESSERA_PREPD_ROW_H
#define TESSERA_PREPD_ROW_H

#include "common/arena.h"
#include "prepd/sample/fit.h"
#include "prepd/sample/text.h"
#include "proto/batch.h"

typedef struct document {
    uint64_t sample_id;
    int32_t part;
    chat_text text;        /* with pads */
    const fit_grid *grids; /* [n_images] */
    int32_t n_images;
    uint8_t *const *patches; /* [n_images] u8 patches each, or NULL entries: zeros */
    bool quarantined;        /* labels ignored */
} document;

/* Arrays in the arena. */
WARN_UNUSED status row_build(const document *docs, int64_t n_docs, arena *a, row *out);

/* Position ids of one document: position [3, stride] at columns [0, n). Exposed for tests. */
void row_positions(const int32_t *ids, int64_t n, const chat_ids *chat, const fit_grid *grids,
                   int32_t n_grids, int32_t *position, int64_t stride);

#endif
