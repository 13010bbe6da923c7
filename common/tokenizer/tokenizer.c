/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.c: encodes and decodes with a loaded tokenizer, in the steps that tokenizer.h draws.
 * Every step keeps the way back to the bytes of the caller's text, for the offsets of tokens. */
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_text.h"
#include "common/tokenizer/tokenizer_impl.h"

struct tokenizer_scratch {
    bpe_scratch *bpe;
    splitter_scratch *split;
    nfc_scratch nfc;
    mapped_text repaired, normalised;
    token_list list; /* what tokenizer_scratch_list gives */
};

/* A part of the text on its way to tokens, with the way back to the caller's bytes. */
typedef struct stretch {
    const uint8_t *text;
    size_t size;
    int64_t base;           /* its offset in the valid UTF-8 text */
    const int64_t *source;  /* [size] offset from base of each byte's source; NULL: NFC changed
                             * nothing */
    const int64_t *repairs; /* offset in the caller's text of each byte of the valid text; NULL: the
                             * caller's text was valid */
} stretch;

void tokenizer_free(tokenizer **out)
{
    tokenizer *vocabulary = *out;
    if (!vocabulary)
        return;
    splitter_free(&vocabulary->split);
    added_set_done(&vocabulary->raw);
    added_set_done(&vocabulary->normalised);
    bpe_merges_done(&vocabulary->merges);
    free(vocabulary->tokens);
    free(vocabulary->bytes);
    free(vocabulary);
    *out = NULL;
}

status tokenizer_scratch_new(const tokenizer *vocabulary, tokenizer_scratch **out)
{
    (void)vocabulary;
    tokenizer_scratch *scratch = calloc(1, sizeof *scratch);
    if (!scratch)
        return FAIL(ST_NO_MEMORY, "no memory for a tokenizer's scratch");
    status st = bpe_scratch_new(&scratch->bpe);
    if (st == ST_OK)
        st = splitter_scratch_new(&scratch->split);
    if (st != ST_OK) {
        tokenizer_scratch_free(&scratch);
        return st;
    }
    *out = scratch;
    return ST_OK;
}

void tokenizer_scratch_free(tokenizer_scratch **scratch)
{
    if (!*scratch)
        return;
    bpe_scratch_free(&(*scratch)->bpe);
    splitter_scratch_free(&(*scratch)->split);
    nfc_scratch_done(&(*scratch)->nfc);
    mapped_text_done(&(*scratch)->repaired);
    mapped_text_done(&(*scratch)->normalised);
    token_list_done(&(*scratch)->list);
    free(*scratch);
    *scratch = NULL;
}

void token_list_done(token_list *list)
{
    free(list->id);
    free(list->offset);
    *list = (token_list){0};
}

token_list *tokenizer_scratch_list(tokenizer_scratch *scratch)
{
    return &scratch->list;
}

static status list_put(token_list *list, int32_t id, int64_t offset)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity * 2 + 64;
        int32_t *ids = realloc(list->id, capacity * sizeof *ids);
        if (!ids)
            return FAIL(ST_NO_MEMORY, "no memory for %zu tokens", capacity);
        list->id = ids;
        int64_t *offsets = realloc(list->offset, capacity * sizeof *offsets);
        if (!offsets)
            return FAIL(ST_NO_MEMORY, "no memory for %zu tokens", capacity);
        list->offset = offsets;
        list->capacity = capacity;
    }
    list->id[list->count] = id;
    list->offset[list->count++] = offset;
    return ST_OK;
}

static int64_t source_offset(const stretch *range, size_t at)
{
    int64_t offset = range->base + (range->source ? range->source[at] : (int64_t)at);
    return range->repairs ? range->repairs[offset] : offset;
}

/* Encodes the bytes [from, to) of `range`, which contain no added tokens: cuts pieces and merges
 * them. */
static status encode_words(const tokenizer *vocabulary, tokenizer_scratch *scratch,
                           const stretch *range, size_t from, size_t to, token_list *out)
{
    split_walk walk;
    size_t start, end;
    bool more;
    TRY(split_begin(vocabulary->split, scratch->split, range->text + from, to - from, &walk));
    for (;;) {
        TRY(split_next(vocabulary->split, scratch->split, &walk, &start, &end, &more));
        if (!more)
            return ST_OK;
        const bpe_token *tokens;
        size_t count;
        start += from;
        end += from;
        TRY(bpe_encode(&vocabulary->merges, vocabulary->byte_id, scratch->bpe, range->text + start,
                       end - start, &tokens, &count));
        for (size_t i = 0; i < count; i++)
            TRY(list_put(out, tokens[i].id, source_offset(range, start + (size_t)tokens[i].start)));
    }
}

/* Encodes one fragment between the added tokens of the raw text. */
static status encode_fragment(const tokenizer *vocabulary, tokenizer_scratch *scratch,
                              stretch range, token_list *out)
{
    if (vocabulary->nfc && !nfc_settled(range.text, range.size)) {
        TRY(nfc_normalise(range.text, range.size, &scratch->nfc, &scratch->normalised));
        if (scratch->normalised.size != range.size ||
            memcmp(scratch->normalised.bytes, range.text, range.size)) {
            range.text = scratch->normalised.bytes;
            range.size = scratch->normalised.size;
            range.source = scratch->normalised.source;
        }
    }
    size_t at = 0, found;
    const added_token *token;
    while ((token = added_set_find(&vocabulary->normalised, range.text, range.size, at, &found))) {
        TRY(encode_words(vocabulary, scratch, &range, at, found, out));
        TRY(list_put(out, token->id, source_offset(&range, found)));
        at = found + token->size;
    }
    return encode_words(vocabulary, scratch, &range, at, range.size, out);
}

static status encode_text(const tokenizer *vocabulary, tokenizer_scratch *scratch, stretch range,
                          token_list *out)
{
    const uint8_t *text = range.text;
    size_t size = range.size, at = 0, found;
    const added_token *token;
    while ((token = added_set_find(&vocabulary->raw, text, size, at, &found))) {
        range.text = text + at;
        range.size = found - at;
        range.base = (int64_t)at;
        TRY(encode_fragment(vocabulary, scratch, range, out));
        range.base = (int64_t)found;
        TRY(list_put(out, token->id, source_offset(&range, 0)));
        at = found + token->size;
    }
    range.text = text + at;
    range.size = size - at;
    range.base = (int64_t)at;
    return encode_fragment(vocabulary, scratch, range, out);
}

status tokenizer_encode(const tokenizer *vocabulary, tokenizer_scratch *scratch, const char *text,
                        size_t size, token_list *out)
{
    if (!size)
        return ST_OK;
    stretch range = {.text = (const uint8_t *)text, .size = size};
    if (!utf8_valid(range.text, size)) {
        TRY(utf8_repair(range.text, size, &scratch->repaired));
        range.text = scratch->repaired.bytes;
        range.size = scratch->repaired.size;
        range.repairs = scratch->repaired.source;
    }
    size_t count = out->count;
    status st = encode_text(vocabulary, scratch, range, out);
    if (st != ST_OK)
        out->count = count;
    return st;
}

status tokenizer_decode(const tokenizer *vocabulary, const int32_t *id, size_t count,
                        bool skip_special, char **out, size_t *out_size)
{
    size_t size = 0;
    for (size_t i = 0; i < count; i++) {
        if (id[i] < 0)
            return FAIL(ST_BAD_INPUT, "id %d (number %zu of %zu) is not a token; ids are 0 to %d",
                        id[i], i + 1, count, vocabulary->size - 1);
        if (id[i] < vocabulary->size)
            size += vocabulary->tokens[id[i]].size;
    }
    uint8_t *joined = malloc(size + 1);
    if (!joined)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of text", size);
    size = 0;
    for (size_t i = 0; i < count; i++) {
        if (id[i] >= vocabulary->size)
            continue;
        token_text token = vocabulary->tokens[id[i]];
        if (token.kind == TOKEN_UNUSED || (skip_special && token.kind == TOKEN_SPECIAL))
            continue;
        memcpy(joined + size, vocabulary->bytes + token.start, token.size);
        size += token.size;
    }
    if (!utf8_valid(joined, size)) { /* a token may end inside a character */
        mapped_text repaired = {0};
        status st = utf8_repair(joined, size, &repaired);
        free(joined);
        joined = st == ST_OK ? malloc(repaired.size + 1) : NULL;
        if (joined)
            memcpy(joined, repaired.bytes, repaired.size);
        size = repaired.size;
        mapped_text_done(&repaired);
        if (!joined)
            return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of text", size);
    }
    joined[size] = 0;
    *out = (char *)joined;
    *out_size = size;
    return ST_OK;
}

static int32_t find_added(const added_set *set, const char *content)
{
    for (size_t i = 0; i < set->count; i++)
        if (!strcmp(set->tokens[i].text, content))
            return set->tokens[i].id;
    return -1;
}

int32_t tokenizer_added(const tokenizer *vocabulary, const char *content)
{
    int32_t id = find_added(&vocabulary->raw, content);
    return id >= 0 ? id : find_added(&vocabulary->normalised, content);
}

int32_t tokenizer_size(const tokenizer *vocabulary)
{
    return vocabulary->size;
}

hash128 tokenizer_digest(const tokenizer *vocabulary)
{
    return vocabulary->digest;
}

/* The hashes by which two machines find out whether their ids are the
 * same. */

static const code_set *const SETS[] = {&code_letters, &code_numbers, &code_spaces, &code_nfc};
enum { N_SETS = sizeof SETS / sizeof *SETS };

status tokenizer_rules(hash128 *out)
{
    hasher *hash = NULL;
    TRY(hasher_new(&hash));
    for (int k = 0; k < N_SETS; k++) {
        hasher_add_u64(hash, SETS[k]->count);
        for (size_t i = 0; i < SETS[k]->count; i++) {
            hasher_add_u64(hash, (uint64_t)SETS[k]->ranges[i].first);
            hasher_add_u64(hash, (uint64_t)SETS[k]->ranges[i].last);
        }
    }
    *out = hasher_value(hash);
    hasher_free(&hash);
    return ST_OK;
}

/* Writes a text in which the character `code` stands before a letter, between digits, and between
 * combining marks of a high and a low class, so that the ids show its class and its normal form.
 * With `letter` for the character it is " c_a1c'Se?`letter`? ", where ? is a mark. Returns its
 * size. */
static size_t around(int32_t code, char text[64])
{
    static const char *const between[] = {" ", "_a1", "'Se\xCD\x85", "\xCC\xB4 "};
    uint8_t *at = (uint8_t *)text;
    for (size_t k = 0; k < 4; k++) {
        for (const char *letter = between[k]; *letter; letter++)
            *at++ = (uint8_t)*letter;
        if (k < 3)
            at += utf8_put(code, at);
    }
    return (size_t)(at - (uint8_t *)text);
}

static status add_around(const tokenizer *vocabulary, tokenizer_scratch *scratch, int32_t code,
                         hasher *hash)
{
    char text[64];
    token_list *list = tokenizer_scratch_list(scratch);
    if (code < 0 || (code >= 0xD800 && code < 0xE000))
        return ST_OK;
    list->count = 0;
    TRY(tokenizer_encode(vocabulary, scratch, text, around(code, text), list));
    hasher_add(hash, list->id, list->count * sizeof *list->id);
    return ST_OK;
}

status tokenizer_fingerprint(const tokenizer *vocabulary, hash128 *out)
{
    status st = ST_OK;
    hasher *hash = NULL;
    tokenizer_scratch *scratch = NULL;
    TRY(tokenizer_scratch_new(vocabulary, &scratch));
    TRY_OR(done, hasher_new(&hash));
    for (int k = 0; k < N_SETS; k++)
        for (size_t i = 0; i < SETS[k]->count; i++) {
            const code_range range = SETS[k]->ranges[i];
            for (int32_t j = 0; j < 2; j++) {
                TRY_OR(done, add_around(vocabulary, scratch, range.first - j, hash));
                TRY_OR(done, add_around(vocabulary, scratch, range.last + j, hash));
            }
        }
    *out = hasher_value(hash);
done:
    hasher_free(&hash);
    tokenizer_scratch_free(&scratch);
    return st;
}
