/* tokenizer_fingerprint.c: the hashes by which two machines find out whether their ids are the
 * same. */
#include "common/tokenizer/tokenizer.h"

#include "common/tokenizer/tokenizer_classes.h"
#include "common/tokenizer/tokenizer_text.h"

static const code_set *const SETS[] = {&code_letters, &code_numbers, &code_spaces, &code_nfc};
enum { N_SETS = sizeof SETS / sizeof *SETS };

status tokenizer_rules(hash128 *out)
{
    hasher *h = NULL;
    TRY(hasher_new(&h));
    for (int k = 0; k < N_SETS; k++) {
        hasher_add_u64(h, SETS[k]->count);
        for (size_t i = 0; i < SETS[k]->count; i++) {
            hasher_add_u64(h, (uint64_t)SETS[k]->ranges[i].first);
            hasher_add_u64(h, (uint64_t)SETS[k]->ranges[i].last);
        }
    }
    *out = hasher_value(h);
    hasher_free(&h);
    return ST_OK;
}

/* Writes a text in which the character `code` stands before a letter, between digits, and between
 * combining marks of a high and a low class, so that the ids show its class and its normal form.
 * With c for the character it is " c_a1c'Se?c? ", where ? is a mark. Returns its size. */
static size_t around(int32_t code, char text[64])
{
    static const char *const between[] = {" ", "_a1", "'Se\xCD\x85", "\xCC\xB4 "};
    uint8_t *p = (uint8_t *)text;
    for (size_t k = 0; k < 4; k++) {
        for (const char *c = between[k]; *c; c++)
            *p++ = (uint8_t)*c;
        if (k < 3)
            p += utf8_put(code, p);
    }
    return (size_t)(p - (uint8_t *)text);
}

static status add_around(const tokenizer *t, tokenizer_scratch *s, int32_t code, hasher *h)
{
    char text[64];
    token_list *l = tokenizer_scratch_list(s);
    if (code < 0 || (code >= 0xD800 && code < 0xE000))
        return ST_OK;
    l->count = 0;
    TRY(tokenizer_encode(t, s, text, around(code, text), l));
    hasher_add(h, l->id, l->count * sizeof *l->id);
    return ST_OK;
}

status tokenizer_fingerprint(const tokenizer *t, hash128 *out)
{
    status st = ST_OK;
    hasher *h = NULL;
    tokenizer_scratch *s = NULL;
    TRY(tokenizer_scratch_new(t, &s));
    TRY_OR(done, hasher_new(&h));
    for (int k = 0; k < N_SETS; k++)
        for (size_t i = 0; i < SETS[k]->count; i++) {
            const code_range r = SETS[k]->ranges[i];
            for (int32_t d = 0; d < 2; d++) {
                TRY_OR(done, add_around(t, s, r.first - d, h));
                TRY_OR(done, add_around(t, s, r.last + d, h));
            }
        }
    *out = hasher_value(h);
done:
    hasher_free(&h);
    tokenizer_scratch_free(&s);
    return st;
}
