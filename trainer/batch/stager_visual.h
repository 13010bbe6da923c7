/* SPDX-License-Identifier: Apache-2.0 */
/* stager_visual.h: stages the visual part of rows: which token shows which merged row, pixels in
 * grid order, patch coordinates, rows and weights of the position table, frame borders
 * (model/equations.md, "Vision tower"). Internal to trainer/batch. */
#ifndef TESSERA_TRAINER_BATCH_STAGER_VISUAL_H
#define TESSERA_TRAINER_BATCH_STAGER_VISUAL_H

#include "trainer/batch/row_share.h"
#include "trainer/batch/stager.h"

typedef struct visual_stage {
    const model_dims *dims;
    device_batch *host;      /* on the host, written: token arrays of the whole rows */
    device_batch *mine;      /* on the host, written: patch arrays of this rank's items */
    const item_place *place; /* [items of all rows] from row_share_items */
    int64_t rank;            /* this rank's number in its row group; -1: it stages no pixels */
    int64_t feature_rows;    /* merged rows that each rank has in the gathered features */
    st_dtype acc;
    bool wide;     /* fill pixels_wide, not pixels */
    int32_t *kind; /* [cap.items] scratch: which pads show an item: 0 none, 1 image, 2 video */
    /* How much the rows so far hold; patches and frames count only this rank's. */
    int64_t items, patches, frames;
} visual_stage;

/* ST_BAD_INPUT if the grids of a row do not describe its pixels, or the model has no vision. */
WARN_UNUSED status stage_visual_check(const row *packed, const model_dims *dims);
/* Appends row `packed`, whose tokens begin at number `token` of the batch. ST_BAD_INPUT, with the
 * sample id, if its pads and its items disagree. */
WARN_UNUSED status stage_visual_row(visual_stage *stage, const row *packed, int64_t token);

#endif
