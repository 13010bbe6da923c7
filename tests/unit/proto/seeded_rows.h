/* SPDX-License-Identifier: Apache-2.0 */
/* seeded_rows.h: packed rows made from a seed, for the tests of proto. The same recipe gives the
 * same row. */
#ifndef TESSERA_TESTS_UNIT_PROTO_SEEDED_ROWS_H
#define TESSERA_TESTS_UNIT_PROTO_SEEDED_ROWS_H

#include "common/base/arena.h"
#include "proto/row/batch.h"

/* Says what a row is made of. */
typedef struct row_recipe {
    uint64_t seed;
    int n_docs;
    int images, videos; /* per document */
    /* videos have one pair of frames, so that only the token id tells them from pictures */
    int one_frame_videos;
    int weights;
    int shared; /* later documents show the items of the first one again */
    int prefix; /* the first document is the prefix of all others, which show nothing themselves */
    int noise;  /* 1: pixels are noise; 0: they are smooth */
} row_recipe;

enum { TEXT_ID_MAX = 100, IMAGE_ID = 2003, VIDEO_ID = 2004 };

/* Makes a row in the arena. It passes row_check. */
void row_make(const row_recipe *recipe, arena *memory, row *out);
/* Makes the first document the prefix of all others, of which there are two or more. */
void row_make_prefix(row *packed, arena *memory);
/* Fails the test unless all tensors and texts of the two rows are equal. */
void rows_assert_equal(const row *first, const row *second);

/* Writes the tag of a row without prefixes (proto/row/tag.h) to out [ROW_TAG_BYTES]. Number `wrong`,
 * counted over all its lists, is one too large; -1: none is. no_targets: the numbers of targets are
 * null. Returns how many numbers there are. */
enum { ROW_TAG_BYTES = 1 << 16 };
int64_t row_write_tag(const row *packed, uint64_t number, int64_t wrong, bool no_targets,
                      char *out);

#endif
