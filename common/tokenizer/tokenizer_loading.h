/* tokenizer_loading.h: inside of loading: the file being read, and its typed members.
 *
 * tokenizer_load.c reads the file and the steps around the model, tokenizer_vocab.c the model; both
 * look members up by tokenizer_members.c. */
#ifndef TESSERA_COMMON_TOKENIZER_LOADING_H
#define TESSERA_COMMON_TOKENIZER_LOADING_H

#include "common/json/json.h"
#include "common/tokenizer/tokenizer_impl.h"

/* A symbol of model.vocab, while merges are being resolved. */
typedef struct symbol_entry {
    const char *text; /* borrowed from the document; NULL: empty slot */
    size_t size;
    int32_t id;
} symbol_entry;

typedef struct loading {
    const char *file;
    json_value *document;
    tokenizer *t;          /* being made */
    symbol_entry *symbols; /* open addressing */
    size_t symbol_mask;
    size_t bytes_used, bytes_capacity; /* of t->bytes */
    int16_t to_byte[BYTE_SYMBOLS_END];
} loading;

/* Member key of object (which stands at path `at`, "" for the top) in *out if it is there and not
 * null, else NULL. Fails, with the path, on another type. */
WARN_UNUSED status loading_optional(const loading *l, const json_value *object, const char *at,
                                    const char *key, json_type type, const json_value **out);
/* The same, failing if it is absent or null. */
WARN_UNUSED status loading_required(const loading *l, const json_value *object, const char *at,
                                    const char *key, json_type type, const json_value **out);
/* Fails unless the member is absent, null, false or "": something that is not implemented. */
WARN_UNUSED status loading_must_be_off(const loading *l, const json_value *object, const char *at,
                                       const char *key);

/* model.vocab and model.merges, with tables large enough for the added tokens' ids too. added is
 * their array, or NULL. */
WARN_UNUSED status loading_model(loading *l, const json_value *root, const json_value *added);
/* What an id decodes to. */
WARN_UNUSED status loading_put_text(loading *l, int32_t id, const uint8_t *text, size_t size,
                                    uint8_t kind);

#endif
