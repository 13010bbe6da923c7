/* tokenizer_impl.h: what a loaded tokenizer is made of; shared by tokenizer.c (use) and
 * tokenizer_load.c (making it from the file), and by nothing else. */
#ifndef TESSERA_COMMON_TOKENIZER_IMPL_H
#define TESSERA_COMMON_TOKENIZER_IMPL_H

#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_bpe.h"
#include "common/tokenizer/tokenizer_split.h"

enum { TOKEN_UNUSED, TOKEN_BASE, TOKEN_ADDED, TOKEN_SPECIAL }; /* kind of an id */

typedef struct token_text {
    uint32_t start, size; /* in tokenizer.bytes */
    uint8_t kind;
} token_text;

struct tokenizer {
    hash128 digest;
    bool nfc;
    splitter *split;
    /* Added tokens that are looked for in the raw text, and those with normalized: true, which the
     * reference looks for in the normalised text between the former. */
    added_set raw, normalised;
    bpe_merges merges;
    int32_t byte_id[256]; /* the token of each single byte */
    token_text *tokens;   /* [size], by id */
    uint8_t *bytes;       /* what the ids decode to, one after another */
    int32_t size;
};

/* The 256 printable characters that stand for bytes in a vocabulary's texts (spec 8.1). */
enum { BYTE_SYMBOLS_END = 0x144 };                    /* they all lie below this code point */
void byte_symbols(int16_t to_byte[BYTE_SYMBOLS_END]); /* -1: stands for no byte */

#endif
