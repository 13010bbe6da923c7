/* row_images.h: decodes the pictures and clips of one row.
 *
 * Each is decoded once and its patches are written once, to the place where they stay: into the
 * item's part of the message if pixels are sent as they are, otherwise into the lease's memory. */
#ifndef TESSERA_PREPD_WORKER_ROW_IMAGES_H
#define TESSERA_PREPD_WORKER_ROW_IMAGES_H

#include "prepd/worker/clips.h"
#include "prepd/worker/row.h"
#include "prepd/worker/worker.h"

typedef struct row_item row_item;

typedef struct row_images {
    workshop *shop;
    const conf *options;
    const char *root;
    const json_value *files; /* the files of the lease */
    bool in_place;           /* neither filter nor codec: patches lie in shop->items_made */
    row_item *items;         /* [n_items] in the row's order; in the arena shop->row */
    int64_t n_items, most_items;
    int64_t shown; /* the first item that the last document added */
} row_images;

/* Begins a row of at most most_items items. The caller has set the fields down to in_place. */
WARN_UNUSED status row_images_begin(row_images *images, int64_t most_items);
/* Makes room for the items of the next document. A document that shares adds none. */
WARN_UNUSED status row_images_add(row_images *images, const document *doc);
/* Image `index` of that document is number `file` of the lease's files: *out_patches gets its
 * patches, which are decoded unless the row has them already. ST_NO_INPUT if this machine does not
 * have the file. */
WARN_UNUSED status row_images_fill(row_images *images, int32_t index, int64_t file,
                                   const lease_clip *clip, uint8_t **out_patches);
/* If in_place, completes the parts for codec_encode_made:
 * items that were not filled become zero. */
void row_images_finish(row_images *images);

#endif
