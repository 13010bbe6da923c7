/* prompt.h: cuts one document out of a packed row, as a row of its own. */
#ifndef TESSERA_TRAINER_GENERATE_PROMPT_H
#define TESSERA_TRAINER_GENERATE_PROMPT_H

#include "trainer/generate/replies.h"

/* The items (pictures) [first, last) of a document, and the merged row at which the first of them
 * begins. */
typedef struct prompt_span {
    int64_t first, last, first_row;
} prompt_span;
/* Finds those of document `doc`; {0, 0, 0} if it has none. */
void prompt_items(const row *row, int64_t doc, prompt_span *out);

/* The document cut before a reply, without labels: the prompt of a question, with what was said
 * before it and the pictures shown so far. Its arrays are in the arena. BAD_INPUT for rows with
 * video, and for documents that are prefixes or have one. */
WARN_UNUSED status prompt_of_reply(const row *packed, const reply *reply, arena *arena, row *out);
/* The whole document with its labels and weights, unpacked. Its arrays are in the arena. BAD_INPUT
 * as above. */
WARN_UNUSED status prompt_whole_document(const row *packed, int64_t doc, arena *arena, row *out);

#endif
