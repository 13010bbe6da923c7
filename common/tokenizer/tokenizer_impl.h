/* tokenizer_impl.h: the content of a loaded tokenizer. It is shared by tokenizer.c, which uses it,
 * and the files that make it from tokenizer.json (tokenizer_loading.h). */
#ifndef TESSERA_COMMON_TOKENIZER_IMPL_H
#define TESSERA_COMMON_TOKENIZER_IMPL_H

#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_bpe.h"
#include "common/tokenizer/tokenizer_split.h"

enum { TOKEN_UNUSED, TOKEN_BASE, TOKEN_ADDED, TOKEN_SPECIAL }; /* kinds of an id */

typedef struct token_text {
    uint32_t start, size; /* its bytes in tokenizer.bytes */
    uint8_t kind;         /* TOKEN_... */
} token_text;

struct tokenizer {
    hash128 digest;
    bool nfc;
    splitter *split;
    /* raw: the added tokens that are searched for in the text as it is. normalised: those with
     * "normalized": true, which are searched for afterwards, in the NFC text between the raw ones.
     */
    added_set raw, normalised;
    bpe_merges merges;
    int32_t byte_id[256]; /* the token of each single byte */
    token_text *tokens;   /* [size], by id */
    uint8_t *bytes;       /* what the ids decode to, one after another */
    int32_t size;
};

/* A vocabulary writes each byte as one of 256 printable characters, since its texts are JSON:
 * printable bytes stand for themselves, and the others, in order, are U+0100 and the following
 * (bytes_to_unicode in GPT-2's encoder.py). All lie below this code point. */
enum { BYTE_SYMBOLS_END = 0x144 };
/* Fills in the byte that each character stands for; -1: none. */
void byte_symbols(int16_t to_byte[BYTE_SYMBOLS_END]);

#endif
