/* prompt.h: one document of a packed row as a row of its own. */
#ifndef TESSERA_TRAINER_GENERATE_PROMPT_H
#define TESSERA_TRAINER_GENERATE_PROMPT_H

#include "proto/batch.h"

/* The items [first, last) that a document's visual rows fall into, and the merged row where the
 * first begins. */
typedef struct prompt_span {
    int64_t first, last, first_row;
} prompt_span;
void prompt_items(const row *r, int64_t doc, prompt_span *out);

/* Cut before its first target, without labels. Arrays in the arena. Fails on rows with video. */
WARN_UNUSED status prompt_of_document(const row *r, int64_t doc, arena *a, row *out);
/* The whole document with its labels and weights: unpacked. */
WARN_UNUSED status prompt_whole_document(const row *r, int64_t doc, arena *a, row *out);

#endif
