/* head.h: decides whether the output head is tied, that is, uses the embedding's weights.
 *
 * Versions of transformers look for tie_word_embeddings in different places of config.json, so it
 * also depends on whether lm_head.weight is stored (tests/golden/heads.json has each version):
 *
 *   stored      The head is tied only if the top level says so and the stored head equals the
 *               embedding, as in 5.24. 4.57 drops a stored head that differs where text_config
 *               says tied.
 *   not stored  The head is tied if the top level (5.24) or text_config (4.57) says so. If neither
 *               does it is untied, and loading fails for want of lm_head.weight.
 *   no weights  The top level decides, as in 5.24, which writes "true" into every text_config of
 *               qwen3_vl_moe that says nothing, and does not read it. */
#ifndef TESSERA_TRAINER_MODEL_HEAD_H
#define TESSERA_TRAINER_MODEL_HEAD_H

#include <stdbool.h>

#include "common/json/json.h"
#include "common/base/status.h"

/* What the two places of tie_word_embeddings say. In a text-only model they are the same place. */
typedef struct head_ties {
    bool top, text;
} head_ties;

/* Reads both places; a missing one is false. ST_BAD_INPUT for a value that is not a boolean; source
 * names the file in the message. */
WARN_UNUSED status head_read_ties(const json_value *config, const char *source, head_ties *out);
/* Decides for a model folder, with or without weights; its files are opened only where they decide.
 * text_prefix: what names of the text part begin with. Errors: as hf_folder_open. */
WARN_UNUSED status head_is_tied(const head_ties *ties, const char *folder, const char *text_prefix,
                                bool *out);

#endif
