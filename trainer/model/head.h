/* head.h: are the head's weights the embedding's? The reference's versions ask different places of
 * config.json, so the weights have the last word (tests/golden/heads.json):
 *
 *   lm_head.weight is stored   tied only if the top level says so and it equals the embedding,
 *                              as 5.23 has it; 4.57 drops one that differs where text_config
 *                              says tied
 *   none is stored             tied if the top level (5.23) or text_config (4.57) says so;
 *                              where neither does, untied, and lm_head.weight must be there */
#ifndef TESSERA_TRAINER_MODEL_HEAD_H
#define TESSERA_TRAINER_MODEL_HEAD_H

#include <stdbool.h>

#include "common/json/json.h"
#include "common/base/status.h"

/* What the two places of tie_word_embeddings say; text-only models have one, which is both. */
typedef struct head_ties {
    bool top, text;
} head_ties;

WARN_UNUSED status head_read_ties(const json_value *config, const char *source, head_ties *out);
/* folder: with or without weights, whose files are only looked into where they decide. */
WARN_UNUSED status head_is_tied(const head_ties *t, const char *folder, const char *text_prefix,
                                bool *out);

#endif
