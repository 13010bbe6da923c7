/* tokenizer_fingerprint.c: the hashes by which two machines find out whether their ids are the
 * same. */
#include "common/tokenizer/tokenizer.h"

#include "common/tokenizer/tokenizer_classes.h"
#include "common/tokenizer/tokenizer_text.h"

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
