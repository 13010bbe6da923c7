/* tokenizer.c: encodes and decodes with a loaded tokenizer, in the steps that tokenizer.h draws.
 * Every step keeps the way back to the bytes of the caller's text, for the offsets of tokens. */
#include "common/tokenizer/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#include "common/tokenizer/tokenizer_text.h"
#include "common/base/utf8.h"

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
    tokenizer *t = *out;
    if (!t)
        return;
    splitter_free(&t->split);
    added_set_done(&t->raw);
    added_set_done(&t->normalised);
    bpe_merges_done(&t->merges);
    free(t->tokens);
    free(t->bytes);
    free(t);
    *out = NULL;
}

status tokenizer_scratch_new(const tokenizer *t, tokenizer_scratch **out)
{
    (void)t;
    tokenizer_scratch *s = calloc(1, sizeof *s);
    if (!s)
        return FAIL(ST_NO_MEMORY, "no memory for a tokenizer's scratch");
    status st = bpe_scratch_new(&s->bpe);
    if (st == ST_OK)
        st = splitter_scratch_new(&s->split);
    if (st != ST_OK) {
        tokenizer_scratch_free(&s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void tokenizer_scratch_free(tokenizer_scratch **s)
{
    if (!*s)
        return;
    bpe_scratch_free(&(*s)->bpe);
    splitter_scratch_free(&(*s)->split);
    nfc_scratch_done(&(*s)->nfc);
    mapped_text_done(&(*s)->repaired);
    mapped_text_done(&(*s)->normalised);
    token_list_done(&(*s)->list);
    free(*s);
    *s = NULL;
}

void token_list_done(token_list *l)
{
    free(l->id);
    free(l->offset);
    *l = (token_list){0};
}

token_list *tokenizer_scratch_list(tokenizer_scratch *s)
{
    return &s->list;
}

static status list_put(token_list *l, int32_t id, int64_t offset)
{
    if (l->count == l->capacity) {
        size_t capacity = l->capacity * 2 + 64;
        int32_t *ids = realloc(l->id, capacity * sizeof *ids);
        if (!ids)
            return FAIL(ST_NO_MEMORY, "no memory for %zu tokens", capacity);
        l->id = ids;
        int64_t *offsets = realloc(l->offset, capacity * sizeof *offsets);
        if (!offsets)
            return FAIL(ST_NO_MEMORY, "no memory for %zu tokens", capacity);
        l->offset = offsets;
        l->capacity = capacity;
    }
    l->id[l->count] = id;
    l->offset[l->count++] = offset;
    return ST_OK;
}

static int64_t source_offset(const stretch *x, size_t at)
{
    int64_t offset = x->base + (x->source ? x->source[at] : (int64_t)at);
    return x->repairs ? x->repairs[offset] : offset;
}

/* Encodes the bytes [from, to) of x, which contain no added tokens: cuts pieces and merges them. */
static status encode_words(const tokenizer *t, tokenizer_scratch *s, const stretch *x, size_t from,
                           size_t to, token_list *out)
{
    split_walk walk;
    size_t start, end;
    bool more;
    TRY(split_begin(t->split, s->split, x->text + from, to - from, &walk));
    for (;;) {
        TRY(split_next(t->split, s->split, &walk, &start, &end, &more));
        if (!more)
            return ST_OK;
        const bpe_token *tokens;
        size_t n;
        start += from;
        end += from;
        TRY(bpe_encode(&t->merges, t->byte_id, s->bpe, x->text + start, end - start, &tokens, &n));
        for (size_t i = 0; i < n; i++)
            TRY(list_put(out, tokens[i].id, source_offset(x, start + (size_t)tokens[i].start)));
    }
}

/* Encodes one fragment between the added tokens of the raw text. */
static status encode_fragment(const tokenizer *t, tokenizer_scratch *s, stretch x, token_list *out)
{
    if (t->nfc && !nfc_settled(x.text, x.size)) {
        TRY(nfc_normalise(x.text, x.size, &s->nfc, &s->normalised));
        if (s->normalised.size != x.size || memcmp(s->normalised.bytes, x.text, x.size)) {
            x.text = s->normalised.bytes;
            x.size = s->normalised.size;
            x.source = s->normalised.source;
        }
    }
    size_t at = 0, found;
    const added_token *token;
    while ((token = added_set_find(&t->normalised, x.text, x.size, at, &found))) {
        TRY(encode_words(t, s, &x, at, found, out));
        TRY(list_put(out, token->id, source_offset(&x, found)));
        at = found + token->size;
    }
    return encode_words(t, s, &x, at, x.size, out);
}

static status encode_text(const tokenizer *t, tokenizer_scratch *s, stretch x, token_list *out)
{
    const uint8_t *text = x.text;
    size_t size = x.size, at = 0, found;
    const added_token *token;
    while ((token = added_set_find(&t->raw, text, size, at, &found))) {
        x.text = text + at;
        x.size = found - at;
        x.base = (int64_t)at;
        TRY(encode_fragment(t, s, x, out));
        x.base = (int64_t)found;
        TRY(list_put(out, token->id, source_offset(&x, 0)));
        at = found + token->size;
    }
    x.text = text + at;
    x.size = size - at;
    x.base = (int64_t)at;
    return encode_fragment(t, s, x, out);
}

status tokenizer_encode(const tokenizer *t, tokenizer_scratch *s, const char *text, size_t size,
                        token_list *out)
{
    if (!size)
        return ST_OK;
    stretch x = {.text = (const uint8_t *)text, .size = size};
    if (!utf8_valid(x.text, size)) {
        TRY(utf8_repair(x.text, size, &s->repaired));
        x.text = s->repaired.bytes;
        x.size = s->repaired.size;
        x.repairs = s->repaired.source;
    }
    size_t n = out->count;
    status st = encode_text(t, s, x, out);
    if (st != ST_OK)
        out->count = n;
    return st;
}

status tokenizer_decode(const tokenizer *t, const int32_t *id, size_t n, bool skip_special,
                        char **out, size_t *out_size)
{
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        if (id[i] < 0)
            return FAIL(ST_BAD_INPUT, "id %d (number %zu of %zu) is not a token; ids are 0 to %d",
                        id[i], i + 1, n, t->size - 1);
        if (id[i] < t->size)
            size += t->tokens[id[i]].size;
    }
    uint8_t *joined = malloc(size + 1);
    if (!joined)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of text", size);
    size = 0;
    for (size_t i = 0; i < n; i++) {
        if (id[i] >= t->size)
            continue;
        token_text token = t->tokens[id[i]];
        if (token.kind == TOKEN_UNUSED || (skip_special && token.kind == TOKEN_SPECIAL))
            continue;
        memcpy(joined + size, t->bytes + token.start, token.size);
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

static int32_t find_added(const added_set *s, const char *content)
{
    for (size_t i = 0; i < s->count; i++)
        if (!strcmp(s->tokens[i].text, content))
            return s->tokens[i].id;
    return -1;
}

int32_t tokenizer_added(const tokenizer *t, const char *content)
{
    int32_t id = find_added(&t->raw, content);
    return id >= 0 ? id : find_added(&t->normalised, content);
}

int32_t tokenizer_size(const tokenizer *t)
{
    return t->size;
}

hash128 tokenizer_digest(const tokenizer *t)
{
    return t->digest;
}
