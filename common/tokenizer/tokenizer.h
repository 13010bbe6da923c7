/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h: turns text into token ids and back, by the byte-level BPE of a Hugging Face
 * tokenizer.json.
 *
 *     text -> added tokens such as <|im_end|> are cut out (leftmost first, then longest)
 *          -> each fragment between them is normalised to NFC
 *          -> cut into pieces by the pre-tokeniser expression (tokenizer_split.h)
 *          -> the bytes of each piece are merged by rank (tokenizer_bpe.h) -> ids
 *
 * The ids are those of the `tokenizers` library (https://github.com/huggingface/tokenizers). To
 * that end the character tables of its pinned release are used (tokenizer_classes.h), and not those
 * of the system's Unicode library. A tokenizer is read-only once it is loaded, and threads can
 * share it; each thread encodes with its own scratch. */
#ifndef TESSERA_COMMON_TOKENIZER_H
#define TESSERA_COMMON_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/status.h"

typedef struct tokenizer tokenizer;
typedef struct tokenizer_scratch tokenizer_scratch; /* buffers of one encoding thread */

/* Loads FOLDER/tokenizer.json. ST_BAD_INPUT, naming the member, if the file has a model, normaliser
 * or pre-tokeniser that is not implemented, or a merge of an unknown symbol; ST_NO_INPUT if there
 * is no such file. */
WARN_UNUSED status tokenizer_load(const char *folder, tokenizer **out);
/* The same from the bytes of a tokenizer.json. Errors name `source`. */
WARN_UNUSED status tokenizer_parse(const char *text, size_t size, const char *source,
                                   tokenizer **out);
/* These set the caller's pointer to NULL and accept one that is NULL. */
void tokenizer_free(tokenizer **tokenizer);
WARN_UNUSED status tokenizer_scratch_new(const tokenizer *tokenizer, tokenizer_scratch **out);
void tokenizer_scratch_free(tokenizer_scratch **scratch);

/* Tokens of a text. A list of zeros is empty; it grows on the heap and is reused between calls. */
typedef struct token_list {
    int32_t *id;     /* [count] */
    int64_t *offset; /* [count] the token's first byte in the text that the caller gave. In a
                      * fragment that NFC changed: the first byte of the character from which the
                      * token's first character was made */
    size_t count, capacity;
} token_list;

void token_list_done(token_list *list);
/* A list that belongs to the scratch, for a caller that needs one for a short time. Set its n to 0
 * before use. */
token_list *tokenizer_scratch_list(tokenizer_scratch *scratch);

/* Appends the tokens of a text of `size` bytes to *out; after a failure *out is as before. Every
 * maximal sequence of bytes that is not UTF-8 counts as U+FFFD, as in Python's
 * decode('utf-8', 'replace'). */
WARN_UNUSED status tokenizer_encode(const tokenizer *tokenizer, tokenizer_scratch *scratch,
                                    const char *text, size_t size, token_list *out);
/* Makes the text of `count` ids, on the heap and ended by a NUL. Bytes that are not UTF-8 become
 * U+FFFD. skip_special leaves out the added tokens that are marked special. Ids beyond the
 * vocabulary are left out, as the published library does, since the head of a model can have padded
 * rows and choose one of them. ST_BAD_INPUT for a negative id. */
WARN_UNUSED status tokenizer_decode(const tokenizer *tokenizer, const int32_t *id, size_t count,
                                    bool skip_special, char **out, size_t *out_size);

/* The id of the added token with this text; -1 if there is none. */
int32_t tokenizer_added(const tokenizer *tokenizer, const char *content);
/* The largest id plus 1. */
int32_t tokenizer_size(const tokenizer *tokenizer);
/* The hash of the bytes of tokenizer.json. */
hash128 tokenizer_digest(const tokenizer *tokenizer);

/* Ids depend on the file, on this code, and on the system's library of normal forms (utf8proc). Two
 * hashes let two machines find out whether they agree.
 *
 * tokenizer_rules hashes the character tables; it needs no tokenizer. */
WARN_UNUSED status tokenizer_rules(hash128 *out);
/* tokenizer_fingerprint hashes the ids of a fixed list of texts, around every code point at which
 * the class or the normal form changes. It takes a few milliseconds. Two processes with the same
 * fingerprint give the same ids. */
WARN_UNUSED status tokenizer_fingerprint(const tokenizer *tokenizer, hash128 *out);

#endif
