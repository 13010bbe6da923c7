/* seeded_rows.h: packed rows made from a seed, for the tests of proto. */
#ifndef TESSERA_TESTS_UNIT_PROTO_SEEDED_ROWS_H
#define TESSERA_TESTS_UNIT_PROTO_SEEDED_ROWS_H

#include "common/base/arena.h"
#include "proto/batch.h"

/* What a row is made of. */
typedef struct row_recipe {
    uint64_t seed;
    int n_docs;
    int images, videos;   /* per document */
    int one_frame_videos; /* the videos have one frame pair, so that only the id tells */
    int weights;
    int shared; /* every document after the first shows the first document's items again */
    int noise;  /* pixels are noise, else smooth */
} row_recipe;

enum { TEXT_ID_MAX = 100, IMAGE_ID = 2003, VIDEO_ID = 2004 };

/* In the arena; passes row_check. */
void row_make(const row_recipe *recipe, arena *a, row *out);
/* Byte for byte, texts too. */
void rows_assert_equal(const row *a, const row *b);

#endif
