/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_impl.h: what the files of the tokenizer share: the table of merges (tokenizer_bpe.c),
 * cutting text (tokenizer_split.c, tokenizer_words.c), the content of a loaded tokenizer, and its
 * loading (tokenizer_load.c, tokenizer_vocab.c). */
#ifndef TESSERA_COMMON_TOKENIZER_IMPL_H
#define TESSERA_COMMON_TOKENIZER_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/json/json.h"
#include "common/tokenizer/tokenizer.h"

typedef struct bpe_merge {
    int32_t left, right; /* ids of the pair; left -1: an empty slot */
    int32_t rank;        /* the smaller rank merges first */
    int32_t id;          /* of the token that the pair becomes */
} bpe_merge;

typedef struct bpe_merges {
    bpe_merge *slots; /* [mask + 1], open addressing */
    size_t mask;
} bpe_merges;

/* Makes an empty table with room for n_merges merges. */
WARN_UNUSED status bpe_merges_init(bpe_merges *merges, size_t n_merges);
void bpe_merges_done(bpe_merges *merges);
/* Adds a merge; call it at most n_merges times. A pair that is added again takes the later rank, as
 * in the tokenizers library. */
void bpe_merges_put(bpe_merges *merges, bpe_merge merge);
/* The merge of a pair; NULL if it has none. */
const bpe_merge *bpe_merges_find(const bpe_merges *merges, int32_t left, int32_t right);

typedef struct bpe_token {
    int32_t id;
    int32_t start; /* index of its first byte in the piece */
} bpe_token;

typedef struct bpe_scratch bpe_scratch;

WARN_UNUSED status bpe_scratch_new(bpe_scratch **out);
void bpe_scratch_free(bpe_scratch **scratch);

/* Merges a piece of `size` bytes. byte_id [256]: the token of each single byte. *out [*out_n] is
 * valid until the next call with this scratch. ST_BAD_INPUT for a piece of more than 512 MiB. */
WARN_UNUSED status bpe_encode(const bpe_merges *merges, const int32_t *byte_id,
                              bpe_scratch *scratch, const uint8_t *piece, size_t size,
                              const bpe_token **out, size_t *out_n);

/* Matches the pre-tokeniser expression of Qwen2 and Qwen3 by hand.
 *
 * Every published Qwen2 and Qwen3 tokenizer.json has the same expression. This code cuts text as
 * the tokenizers library does with it, using that library's character classes
 * (tokenizer_classes.h), which a regular-expression library of the system does not have. The pieces
 * leave no gaps: each begins where the one before ended. */

/* Whether this is the expression that words_next matches. */
bool words_know(const char *expression, size_t size);

typedef struct word_classes word_classes; /* the class of each code point; read-only */

WARN_UNUSED status word_classes_new(word_classes **out);
void word_classes_free(word_classes **classes);

/* Where the piece ends that begins at `at` < size of a valid UTF-8 text. */
size_t words_next(const word_classes *classes, const uint8_t *text, size_t size, size_t at);

/* The two ways in which text is cut before it is merged: at added tokens, and by
 * the pre-tokeniser's regular expression. tokenizer_split.c is the only file that includes PCRE2.
 */

typedef struct added_token {
    char *text; /* on the heap; never empty */
    size_t size;
    int32_t id;
} added_token;

typedef struct added_set {
    added_token *tokens; /* sorted by their first byte, and then by length, the longest first */
    size_t count, capacity;
    size_t first[257]; /* the tokens that begin with byte b are [first[b], first[b + 1]) */
} added_set;

void added_set_done(added_set *set);
/* Adds a token; its text is copied. */
WARN_UNUSED status added_set_put(added_set *set, const uint8_t *text, size_t size, int32_t id);
/* Sorts the set. Call it once, after the last put and before the first find. */
void added_set_seal(added_set *set);
/* Finds the leftmost token that begins at or after `from`, and of those that begin there the
 * longest. *out_at is its offset. NULL if there is none. */
const added_token *added_set_find(const added_set *set, const uint8_t *text, size_t size,
                                  size_t from, size_t *out_at);

typedef struct splitter splitter;
typedef struct splitter_scratch splitter_scratch;

/* Prepares an expression. The one that Qwen2 and Qwen3 publish is matched by tokenizer_words.h,
 * with the character classes of the tokenizers library. Any other is compiled by PCRE2, and has the
 * character classes of the Unicode version that PCRE2 was built with. Errors name `file`. */
WARN_UNUSED status splitter_new(const char *expression, size_t size, const char *file,
                                splitter **out);
void splitter_free(splitter **split);
WARN_UNUSED status splitter_scratch_new(splitter_scratch **out);
void splitter_scratch_free(splitter_scratch **scratch);

/* A walk over the pieces of a valid UTF-8 text. Matches are pieces, and so is the text between two
 * matches. */
typedef struct split_walk {
    const uint8_t *text; /* the text, or a copy with one character replaced for PCRE2 */
    size_t size;
    size_t at;          /* start of the next piece */
    size_t search;      /* where the next match is searched for, at or after `at` */
    size_t match_start; /* a match that was found and not given out yet, if match_end > at */
    size_t match_end;
} split_walk;

/* Begins a walk. text is borrowed until its end. */
WARN_UNUSED status split_begin(const splitter *split, splitter_scratch *scratch,
                               const uint8_t *text, size_t size, split_walk *out);
/* Gives the next piece, the bytes [*out_start, *out_end) of the text. *out_more is false, and there
 * is no piece, after the last one. */
WARN_UNUSED status split_next(const splitter *split, splitter_scratch *scratch, split_walk *walk,
                              size_t *out_start, size_t *out_end, bool *out_more);

/* The content of a loaded tokenizer. It is shared by tokenizer.c, which uses it,
 * and the files that make it from tokenizer.json (tokenizer_loading.h). */

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

/* What the files that load a tokenizer share.
 *
 * tokenizer_load.c reads tokenizer.json and the steps around the model, tokenizer_vocab.c reads the
 * model, and both look up members with tokenizer_members.c. */

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
