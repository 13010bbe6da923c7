/* tokenizer.h: byte-level BPE of a Hugging Face tokenizer.json, text to ids and back.
 *
 * Added tokens split the raw text (leftmost, longest); each fragment is NFC-normalised, cut by the
 * pre-tokeniser expression, mapped to byte symbols and merged by rank. Spec section 8; the ids are
 * those of the `tokenizers` library, whose own character tables are used (tokenizer_classes.h), not
 * those of the system's Unicode. A tokenizer is read-only after loading; each thread encodes with
 * its own scratch. */
#ifndef TESSERA_COMMON_TOKENIZER_H
#define TESSERA_COMMON_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/status.h"

typedef struct tokenizer tokenizer;
typedef struct tokenizer_scratch tokenizer_scratch;

/* folder/tokenizer.json. Refuses, by name, a model, normaliser or pre-tokeniser it does not
 * implement, and merges that name unknown symbols. */
WARN_UNUSED status tokenizer_load(const char *folder, tokenizer **out);
/* The same from the bytes of a tokenizer.json; source names them in errors. */
WARN_UNUSED status tokenizer_parse(const char *text, size_t size, const char *source,
                                   tokenizer **out);
void tokenizer_free(tokenizer **t);
WARN_UNUSED status tokenizer_scratch_new(const tokenizer *t, tokenizer_scratch **out);
void tokenizer_scratch_free(tokenizer_scratch **s);

typedef struct token_list {
    int32_t *id;     /* [n] */
    int64_t *offset; /* [n] first byte of the token in the input text as given; NFC moves text, so
                      * inside a normalised fragment that changed: first byte of the source
                      * character that the token's first character came from */
    size_t n, capacity;
} token_list; /* heap; token_list_done frees; reused between calls */

void token_list_done(token_list *l);
/* A list that lives with the scratch, for a caller who needs one between two calls only; empty it
 * (n = 0) before use. */
token_list *tokenizer_scratch_list(tokenizer_scratch *s);

/* Appends the ids of text (size bytes). Invalid UTF-8: each maximal bad sequence counts as U+FFFD,
 * as Python's decode('utf-8', 'replace') does. */
WARN_UNUSED status tokenizer_encode(const tokenizer *t, tokenizer_scratch *s, const char *text,
                                    size_t size, token_list *out);
/* Bytes of the ids, invalid sequences replaced by U+FFFD; skip_special leaves out added tokens
 * marked special. Heap, terminated. Ids beyond the vocabulary are left out, as the library does (a
 * model's head has padded rows that it may choose); negative ones fail. */
WARN_UNUSED status tokenizer_decode(const tokenizer *t, const int32_t *id, size_t n,
                                    bool skip_special, char **out, size_t *out_size);

int32_t tokenizer_added(const tokenizer *t, const char *content); /* id, or -1 */
int32_t tokenizer_size(const tokenizer *t);                       /* largest id + 1 */
hash128 tokenizer_digest(const tokenizer *t);                     /* of tokenizer.json's bytes */

/* Ids depend on the file, on this code and on the system's library for normal forms. This one is of
 * the character tables alone, without a tokenizer. */
WARN_UNUSED status tokenizer_rules(hash128 *out);
/* A hash of the ids of a fixed list of texts, around every code point at which the class or the
 * normal form changes; it takes some milliseconds. Two processes with the same one give the same
 * ids. */
WARN_UNUSED status tokenizer_fingerprint(const tokenizer *t, hash128 *out);

#endif
