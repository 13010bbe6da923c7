/* stager_visual.h: the visual part of staging a row: which token shows which merged row, pixels in
 * grid order, patch coordinates, position-table corners, frame borders (spec 3.1, 3.3, 3.5).
 * Internal to trainer/batch. */
#ifndef TESSERA_TRAINER_BATCH_STAGER_VISUAL_H
#define TESSERA_TRAINER_BATCH_STAGER_VISUAL_H

#include "trainer/batch/row_share.h"
#include "trainer/batch/stager.h"

typedef struct visual_stage {
    const model_dims *d;
    device_batch *host;      /* index arrays of tokens, of the whole rows; on the host, written */
    device_batch *mine;      /* arrays of patches: of this rank's items */
    const item_place *place; /* [items of all rows] */
    int64_t rank;            /* of this one in its row group; -1: it sees no pixels */
    int64_t feature_rows;    /* merged rows of a rank in the gathered features */
    st_dtype acc;
    bool wide;     /* pixels_wide is filled, not pixels */
    int32_t *kind; /* scratch [cap.items]: which token shows the item: 0 none, 1 image, 2 video */
    /* what earlier rows put there */
    int64_t items, patches, frames; /* patches and frames of this rank */
    bool distinct;                  /* no merged row at two tokens so far */
} visual_stage;

/* Are the grids of a row what its pixels are? By sample id. */
WARN_UNUSED status stage_visual_check(const row *r, const model_dims *d);
/* Appends row r, whose tokens begin at `token` of the batch. Fails by sample id. */
WARN_UNUSED status stage_visual_row(visual_stage *v, const row *r, int64_t token);

#endif
