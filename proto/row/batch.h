/* SPDX-License-Identifier: Apache-2.0 */
/* batch.h: one packed row, as the worker makes it, the wire carries it and the trainer reads it.
 *
 * A row is one training sequence of several documents laid end to end. Its sizes are named by
 * letters throughout this folder:
 *
 *   T  tokens           D  documents          I  visual items: pictures and clips together
 *   S  image patches    V  video patches      M  merged visual rows, (S + V) / 4
 *
 * An item is listed once, where it first appears, even if several documents show it. Qwen3-VL's
 * vision tower merges 2 x 2 patches into one visual token, hence M. The tensors have the names
 * that they have in files and on the wire (wire.md lists them). A row without documents (T = 0) is
 * legal: such rows fill up the last step of a run. */
#ifndef TESSERA_PROTO_ROW_BATCH_H
#define TESSERA_PROTO_ROW_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/hash.h"
#include "common/model_folder/safetensors.h"
#include "common/base/span.h"
#include "common/base/status.h"

enum {
    PATCH_SIDE = 16,          /* pixels */
    PATCH_BYTES = 768,        /* 3 channels x 16 x 16 bytes: one frame of a patch */
    VIDEO_PATCH_BYTES = 1536, /* the same for both frames of a pair */
    MERGE_SIDE = 2,           /* 2 x 2 patches become one merged visual row */
    NO_LABEL = -100,          /* a label that does not count in the loss, as in PyTorch */
};

/* The pixels of one item where they lie, borrowed. */
typedef struct item_pixels {
    const uint8_t *patches; /* [patches of the item, 768], or [.., 1536] for a clip */
    bool is_video;
} item_pixels;

typedef struct row {
    int64_t n_tokens, n_docs, n_items, n_patches, n_video_patches; /* T, D, I, S, V */
    int32_t *input_ids;                                            /* [T] */
    int32_t *labels;       /* [T] label of the token itself (not shifted), or NO_LABEL */
    int32_t *position_ids; /* [3, T] M-RoPE positions: time, height, width */
    int32_t *cu_seqlens;   /* [D + 1] where documents begin, rising from 0 to T */
    int32_t *visual_row;   /* [T] merged visual row, counted over all items; -1 for text */
    int32_t *grid_thw;     /* [I, 3] frames (pairs of them for a clip), height, width, in patches */
    uint8_t *pixels;       /* [S, 768] in merge order; columns are (channel, y, x) */
    /* [I] Set instead of pixels and pixels_video while a row is being made: each item's patches
     * stay where they were cut and are not copied together. NULL otherwise. */
    const item_pixels *items;
    uint8_t *pixels_video;   /* [V, 1536] columns (channel, frame, y, x); NULL if V = 0 */
    float *loss_weight;      /* [T], or NULL if every weight is 1 */
    uint64_t *doc_sample_id; /* [D] the sample's position in the data set */
    /* [D] which part of a split sample this is; 0 for a whole one; -1 for a prefix,
     * which is none */
    int32_t *doc_part;
    /* [D] The document that comes before this one's tokens, or -1; NULL if all are -1. Samples with
     * a common beginning have it once in a row, as a prefix, and each goes on as a branch of it.
     * A prefix stands directly before its branches, of which there are two or more. It is no
     * sample: it has no targets, and the doc_sample_id of its first branch. */
    int32_t *doc_prefix;
    /* Metadata: JSON text, or "" if absent. The digest does not cover it. Over the wire and in
     * recordings it comes in the tag. */
    const char *cursor;     /* where the stream continues after this row */
    const char *quarantine; /* [{"id":N,"cause":"..."}]: the bad samples known when it was made */
    const char *references; /* held-out rows: the reference answers of each document, or null */
    const char *worker;     /* who made it, in words; from the tag (tag.h), "" without one */
} row;

/* Whether a document is a prefix, and so no sample. */
static inline bool row_is_prefix(const row *packed, int64_t doc)
{
    return packed->doc_part[doc] < 0;
}

/* The tokens that come before those of a document in its sample: its prefix's, or none. */
static inline int64_t row_tokens_before(const row *packed, int64_t doc)
{
    const int64_t prefix = packed->doc_prefix ? packed->doc_prefix[doc] : -1;
    return prefix < 0 ? 0 : packed->cu_seqlens[prefix + 1] - packed->cu_seqlens[prefix];
}

/* The sum of n^2 + 2 n P over the documents, n being a document's tokens and P those before them:
 * twice the pairs of tokens that see each other, for row_measure.squares (assign.h). */
int64_t row_squares(const row *packed);

/* The labels of the documents [doc, end) that count in the loss. */
int64_t row_count_targets(const row *packed, int64_t doc, int64_t end);

/* Allocates all arrays for the counts (n_*) that the caller has set. Pixels are left out if items
 * is set; optional: which of the arrays below are there too. Arrays are zero, except labels
 * (NO_LABEL), visual_row and doc_prefix (-1); the metadata is "". ST_NO_MEMORY leaves the row as it
 * was. */
enum { ROW_WEIGHTS = 1, ROW_PREFIXES = 2 }; /* loss_weight, doc_prefix */
WARN_UNUSED status row_alloc(row *packed, arena *memory, unsigned optional);

/* Checks everything that a trainer relies on, so that nothing downstream checks again:
 *   - counts are within [0, INT32_MAX];
 *   - cu_seqlens rises strictly from 0 to T, and the first token of a document has no label;
 *   - a prefix stands directly before two or more branches, has no prefix, label or weight but 1
 *     itself, and its first branch's sample id; doc_prefix is absent where there is none;
 *   - ids, labels and positions are not negative (labels may be NO_LABEL), weights are finite;
 *   - grids have even height and width, and together have S + V patches;
 *   - visual_row shows every item, in order, each whole and inside one document;
 *   - one reading of the token ids tells pictures from clips (row_find_videos).
 * ST_BAD_INPUT names the source and what is wrong. */
WARN_UNUSED status row_check(const row *packed, const char *source);

/* Its parts that must run before the pixels are known; private to proto. Counts: each is within
 * [0, INT32_MAX], and so are all patches together. Grids: each is possible, with even height and
 * width, and all patches together can be counted; the pixels are not compared with them. */
WARN_UNUSED status row_check_counts(const row *packed, const char *source);
WARN_UNUSED status row_check_grids(const row *packed, const char *source);

/* Tells which items are clips: writes 1 for a clip, 0 for a picture, to out_is_video [I],
 * or (NULL) only checks that a reading exists.
 *
 * A row does not say so itself; the token id under an item does, since Qwen3-VL has one id for
 * image tokens and one for video tokens. Of the two ids in use, the video id is the one whose items
 * have n_video_patches patches; where both fit, it is the larger, as in Qwen3-VL's vocabulary.
 * ST_BAD_INPUT if no reading fits the patch counts. The row must otherwise satisfy row_check. */
WARN_UNUSED status row_find_videos(const row *packed, const char *source, uint8_t *out_is_video);

/* The row digest: XXH3-128 over every tensor in the order of their names. Each enters as name, NUL,
 * dtype text, NUL, the number of dimensions and every dimension (u64 little-endian), and its bytes.
 * pixels always enters, pixels_video if V > 0, loss_weight if it is not NULL. Two rows with equal
 * digests train the same; metadata, filter and codec do not enter. */
WARN_UNUSED status row_digest(const row *packed, hash128 *out);

/* The row's tensors as views for a safetensors file, largest element size first so that each lies
 * aligned. with_pixels 0 leaves pixels and pixels_video out: that is the form of the wire, and the
 * only form of a row that has items. Writes *out_n entries, at most ROW_TENSORS. */
enum { ROW_TENSORS = 12 };
void row_tensors(const row *packed, int with_pixels, st_tensor out[ROW_TENSORS], size_t *out_n);
/* The reverse: *out gets views into an opened safetensors file, whose names, dtypes and shapes are
 * checked. With pixels, row_check follows. Without them pixels stay NULL, patches are counted from
 * grid_thw, and a tensor that is not a row's is refused. */
WARN_UNUSED status row_from_tensors(const st_file *file, const char *source, int with_pixels,
                                    row *out);
/* The metadata that is not empty (cursor, quarantine, references) as entries of a safetensors
 * file's __metadata__. Returns how many were written. */
enum { ROW_META = 3 };
size_t row_meta(const row *packed, st_meta out[ROW_META]);
/* Writes the row with its pixels as a safetensors file: for `prepd sample`, probes,
 * golden cases. */
WARN_UNUSED status row_save(const row *packed, const char *path);
/* Opens and checks such a file. The row's arrays lie in the file's read-only map: they must not be
 * written, and are valid until st_close(file). */
WARN_UNUSED status row_open(const char *path, st_file *file, row *out);

#endif
