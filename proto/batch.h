/* batch.h: one packed row, as worker, wire, recording, probe and trainer see it.
 *
 * T tokens, D documents, I visual items (images and videos, order of first appearance),
 * S image patches, V video patches, M merged visual rows = (S + V) / 4.
 * The tensor names are those of design section 4; this struct is their decoded form. A row of no
 * documents (T = 0) is legal: it completes the last step of a run. */
#ifndef TESSERA_PROTO_BATCH_H
#define TESSERA_PROTO_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/hash.h"
#include "common/model_folder/safetensors.h"
#include "common/base/span.h"
#include "common/base/status.h"

enum {
    PATCH_SIDE = 16,          /* pixels */
    PATCH_BYTES = 768,        /* 3 channels x 16 x 16, u8, one frame of the temporal pair */
    VIDEO_PATCH_BYTES = 1536, /* both frames */
    MERGE_SIDE = 2,           /* patches per merged row: 2 x 2 */
    NO_LABEL = -100,
};

typedef struct item_pixels {
    const uint8_t *patches; /* [its patches, 768 or, of a video, 1536] */
    bool is_video;
} item_pixels;

typedef struct row {
    int64_t n_tokens, n_docs, n_items, n_patches, n_video_patches;
    int32_t *input_ids;    /* [T] */
    int32_t *labels;       /* [T] unshifted, NO_LABEL = no loss */
    int32_t *position_ids; /* [3, T] streams T, H, W */
    int32_t *cu_seqlens;   /* [D+1] from 0 to T */
    int32_t *visual_row;   /* [T] merged row over all items in grid_thw order, -1 = text */
    int32_t *grid_thw;     /* [I, 3] in patches */
    uint8_t *pixels;       /* [S, 768] merge order; columns (channel, y, x) */
    /* [I] instead of pixels and pixels_video, while a row is being made: the patches of each item
     * where they lie, so that they are copied nowhere. Else NULL. */
    const item_pixels *items;
    uint8_t *pixels_video;   /* [V, 1536] columns (channel, frame, y, x); NULL if V = 0 */
    float *loss_weight;      /* [T] or NULL: all 1 */
    uint64_t *doc_sample_id; /* [D] position in the data set */
    int32_t *doc_part;       /* [D] part of a split sample, else 0 */
    /* Metadata, not digested; "" or JSON text */
    const char *cursor;     /* where to go on after this row */
    const char *quarantine; /* [{"id":N,"cause":"..."}]: decisions this row was made under */
    const char *references; /* held-out rows: per document its reference answers, or null */
} row;

/* Storage for the counts already set in r (n_*), but no pixels where items is set;
 * with_weight adds loss_weight. Arrays are cleared, labels set to NO_LABEL, visual_row to -1. */
WARN_UNUSED status row_alloc(row *r, arena *a, int with_weight);

/* Checks everything a trainer relies on: counts, borders that rise from 0 to T, grids even and in
 * agreement with pixels and visual_row, rows in order, labels within documents, first label of a
 * document masked, finite weights, ids >= 0. source names the row in errors. */
WARN_UNUSED status row_check(const row *r, const char *source);

/* Which items are videos: 1, else 0, into out_is_video [I]. The token id of an item tells (design
 * section 4); of the two ids in use the video's is the one whose items have n_video_patches. Of
 * a row that row_check accepts, or fails. */
WARN_UNUSED status row_find_videos(const row *r, const char *source, uint8_t *out_is_video);

/* XXH3-128 over every tensor in name order: name, NUL, dtype text, NUL, number of dimensions and
 * each of them as u64 little-endian, bytes. pixels is always there, pixels_video if V > 0,
 * loss_weight if not NULL. */
WARN_UNUSED status row_digest(const row *r, hash128 *out);

/* As tensors of a safetensors file (views into r). with_pixels = 0 leaves pixels and pixels_video
 * out (wire form; the only one of a row with items). At most ROW_TENSORS. */
enum { ROW_TENSORS = 12 };
void row_tensors(const row *r, int with_pixels, st_tensor out[ROW_TENSORS], size_t *out_n);
/* Views into an opened safetensors file; checks names, dtypes, shapes, then row_check when
 * with_pixels. Missing pixels are left NULL with their counts taken from grid_thw. */
WARN_UNUSED status row_from_tensors(const st_file *f, const char *source, int with_pixels,
                                    row *out);
/* cursor, quarantine and references as __metadata__, those that are not empty. Returns how many. */
enum { ROW_META = 3 };
size_t row_meta(const row *r, st_meta out[ROW_META]);
/* The row as a file (pixels included): prepd sample, probe, golden cases. */
WARN_UNUSED status row_save(const row *r, const char *path);
/* The row's arrays lie in the read-only map: valid until st_close(file), not to be written. */
WARN_UNUSED status row_open(const char *path, st_file *file, row *out);

#endif
