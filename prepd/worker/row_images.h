/* row_images.h: the pictures and clips of one row, each decoded once and written once, to where it
 * stays: into its part of the message if that takes pixels as they are, else into the lease's
 * memory. */
#ifndef TESSERA_PREPD_WORKER_ROW_IMAGES_H
#define TESSERA_PREPD_WORKER_ROW_IMAGES_H

#include "prepd/worker/clips.h"
#include "prepd/worker/row.h"
#include "prepd/worker/worker.h"

typedef struct row_item row_item;

typedef struct row_images {
    workshop *s;
    const conf *c;
    const char *root;
    const json_value *files; /* FILEs of the lease */
    bool in_place;           /* neither filter nor codec: patches lie in s->items_made */
    row_item *items;         /* [n_items], in the row's order; in s->row */
    int64_t n_items, most_items;
    int64_t shown; /* the first of those that the last document brought */
} row_images;

/* The fields down to in_place are set; most_items: of all documents together. */
WARN_UNUSED status row_images_begin(row_images *k, int64_t most_items);
/* Room for the items of the next document; one that shares brings none. */
WARN_UNUSED status row_images_add(row_images *k, const document *doc);
/* Image i of that document is this file of the lease: its patches, decoded unless they are there.
 * ST_NO_INPUT: this machine does not have it. */
WARN_UNUSED status row_images_fill(row_images *k, int32_t i, int64_t file, const lease_clip *clip,
                                   uint8_t **out_patches);
/* in_place: all parts are as codec_encode_made wants them; what nobody filled is blank. */
void row_images_finish(row_images *k);

#endif
