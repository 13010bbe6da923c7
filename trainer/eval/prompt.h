/* prompt.h: one document of a packed row as a row of its own. */
#ifndef TESSERA_TRAINER_PROMPT_H
#define TESSERA_TRAINER_PROMPT_H

#include "proto/batch.h"

/* Cut before its first target, without labels. Arrays in the arena. Fails on rows with video. */
WARN_UNUSED status prompt_of_document(const row *r, int64_t doc, arena *a, row *out);
/* The whole document with its labels and weights: unpacked. */
WARN_UNUSED status prompt_whole_document(const row *r, int64_t doc, arena *a, row *out);

#endif
