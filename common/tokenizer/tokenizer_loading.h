/* tokenizer_loading.h: what the files that load a tokenizer share.
 *
 * tokenizer_load.c reads tokenizer.json and the steps around the model, tokenizer_vocab.c reads the
 * model, and both look up members with tokenizer_members.c. */
#ifndef TESSERA_COMMON_TOKENIZER_LOADING_H
#define TESSERA_COMMON_TOKENIZER_LOADING_H

#include "common/json/json.h"
#include "common/tokenizer/tokenizer_impl.h"

/* A symbol of model.vocab; merges name symbols by their text. */
typedef struct symbol_entry {
    const char *text; /* borrowed from the document; NULL: an empty slot */
    size_t size;
    int32_t id;
} symbol_entry;

typedef struct loading {
    const char *file; /* its name for errors */
    json_value *document;
    tokenizer *vocabulary; /* the tokenizer that is being made */
    symbol_entry *symbols; /* open addressing */
    size_t symbol_mask;
    size_t bytes_used, bytes_capacity; /* of vocabulary->bytes */
    int16_t to_byte[BYTE_SYMBOLS_END];
} loading;

/* Gives the member `key` of an object, or NULL if it is absent or null. `at` is the object's path
 * in the file for errors, "" at the top. ST_BAD_INPUT, naming the path, if it has another type. */
WARN_UNUSED status loading_optional(const loading *state, const json_value *object, const char *at,
                                    const char *key, json_type type, const json_value **out);
/* The same, but fails if the member is absent or null. */
WARN_UNUSED status loading_required(const loading *state, const json_value *object, const char *at,
                                    const char *key, json_type type, const json_value **out);
/* For a member that switches on something that is not implemented: fails unless it is absent, null,
 * false or "". */
WARN_UNUSED status loading_must_be_off(const loading *state, const json_value *object,
                                       const char *at, const char *key);

/* Reads model.vocab and model.merges. Makes tables that have room for the ids of the added tokens
 * too; `added` is the array of these, or NULL. */
WARN_UNUSED status loading_model(loading *state, const json_value *root, const json_value *added);
/* Stores the bytes that an id decodes to, and its kind (TOKEN_...). */
WARN_UNUSED status loading_put_text(loading *state, int32_t id, const uint8_t *text, size_t size,
                                    uint8_t kind);

#endif
