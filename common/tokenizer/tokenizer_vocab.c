/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_vocab.c: makes tables from model.vocab and model.merges. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tokenizer/tokenizer_impl.h"
#include "common/tokenizer/tokenizer_text.h"

status loading_optional(const loading *state, const json_value *object, const char *at,
                        const char *key, json_type type, const json_value **out)
{
    const json_value *value = json_find(object, key);
    *out = NULL;
    if (!value || json_typeof(value) == JSON_NULL)
        return ST_OK;
    if (json_typeof(value) != type)
        return FAIL_IN(ST_BAD_INPUT, state->file, "%s%s%s is %s, expected %s", at, *at ? "." : "",
                       key, json_type_name(json_typeof(value)), json_type_name(type));
    *out = value;
    return ST_OK;
}

status loading_required(const loading *state, const json_value *object, const char *at,
                        const char *key, json_type type, const json_value **out)
{
    TRY(loading_optional(state, object, at, key, type, out));
    if (!*out)
        return FAIL_IN(ST_BAD_INPUT, state->file, "%s%s%s is missing, expected %s", at,
                       *at ? "." : "", key, json_type_name(type));
    return ST_OK;
}

status loading_must_be_off(const loading *state, const json_value *object, const char *at,
                           const char *key)
{
    const json_value *value = json_find(object, key);
    if (!value || json_typeof(value) == JSON_NULL)
        return ST_OK;
    if (json_typeof(value) == JSON_BOOL && !json_bool(value, true))
        return ST_OK;
    if (json_typeof(value) == JSON_TEXT && !json_text_size(value))
        return ST_OK;
    return FAIL_IN(ST_BAD_INPUT, state->file, "%s.%s is set, which is not implemented", at, key);
}

/* Makes tables from model.vocab and model.merges. */

enum { ID_MAX = 1 << 24 }; /* bounds the tables; the ids of published vocabularies end near 2^18 */

/* ---- texts of ids ---- */

void byte_symbols(int16_t to_byte[BYTE_SYMBOLS_END])
{
    for (int i = 0; i < BYTE_SYMBOLS_END; i++)
        to_byte[i] = -1;
    int16_t next = 0x100; /* bytes that are not printable move here, in order */
    for (int j = 0; j < 256; j++) {
        bool prints = (j >= 33 && j <= 126) || (j >= 161 && j <= 172) || j >= 174;
        to_byte[prints ? j : next++] = (int16_t)j;
    }
}

status loading_put_text(loading *state, int32_t id, const uint8_t *text, size_t size, uint8_t kind)
{
    tokenizer *vocabulary = state->vocabulary;
    if (state->bytes_capacity - state->bytes_used < size) {
        size_t capacity = state->bytes_capacity * 2 + size + 4096;
        uint8_t *grown = realloc(vocabulary->bytes, capacity);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of vocabulary", capacity);
        vocabulary->bytes = grown;
        state->bytes_capacity = capacity;
    }
    memcpy(vocabulary->bytes + state->bytes_used, text, size);
    vocabulary->tokens[id] = (token_text){(uint32_t)state->bytes_used, (uint32_t)size, kind};
    state->bytes_used += size;
    return ST_OK;
}

/* Writes the bytes that a text of the vocabulary stands for to `out`, which has room for the length
 * of the text. A text with a character outside of the 256 stands for itself, as in the tokenizers
 * library's decoder. */
static size_t symbol_bytes(const loading *state, const char *text, size_t size, uint8_t *out)
{
    size_t count = 0;
    for (size_t i = 0; i < size;) {
        int32_t code;
        i += utf8_next((const uint8_t *)text + i, size - i, &code);
        if (code < 0 || code >= BYTE_SYMBOLS_END || state->to_byte[code] < 0) {
            memcpy(out, text, size);
            return size;
        }
        out[count++] = (uint8_t)state->to_byte[code];
    }
    return count;
}

/* ---- vocabulary ---- */

static symbol_entry *symbol_slot(const loading *state, const char *text, size_t size)
{
    uint64_t mixed = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < size; i++)
        mixed = (mixed ^ (uint8_t)text[i]) * 0x100000001B3u;
    size_t i = (size_t)(mixed ^ mixed >> 32) & state->symbol_mask;
    while (state->symbols[i].text &&
           (state->symbols[i].size != size || memcmp(state->symbols[i].text, text, size)))
        i = (i + 1) & state->symbol_mask;
    return &state->symbols[i];
}

/* Checks the id `value`, whose path in the file is `at`. */
static status check_id(const loading *state, const char *at, const json_value *value)
{
    if (json_typeof(value) != JSON_INT)
        return FAIL_IN(ST_BAD_INPUT, state->file, "%s is %s, expected an integer", at,
                       json_type_name(json_typeof(value)));
    int64_t id = json_int(value, -1);
    if (id < 0 || id >= ID_MAX)
        return FAIL_IN(ST_BAD_INPUT, state->file, "%s is %lld, expected 0 to %d", at, (long long)id,
                       ID_MAX - 1);
    return ST_OK;
}

/* Makes tables with room for every id that the vocabulary and the added tokens name. */
static status size_tables(loading *state, const json_value *vocab, const json_value *added)
{
    int64_t largest = -1;
    size_t count = json_count(vocab);
    for (size_t i = 0; i < count; i++) {
        const char *key;
        const json_value *value = json_member(vocab, i, &key);
        char at[96];
        snprintf(at, sizeof at, "model.vocab[\"%.64s\"]", key);
        TRY(check_id(state, at, value));
        if (json_int(value, 0) > largest)
            largest = json_int(value, 0);
    }
    for (size_t i = 0; i < json_count(added); i++) {
        const json_value *value = json_find(json_item(added, i), "id");
        char at[48];
        snprintf(at, sizeof at, "added_tokens[%zu].id", i);
        if (!value)
            return FAIL_IN(ST_BAD_INPUT, state->file, "%s is missing, expected an integer", at);
        TRY(check_id(state, at, value));
        if (json_int(value, 0) > largest)
            largest = json_int(value, 0);
    }
    size_t slots = 16;
    while (slots < 2 * count)
        slots *= 2;
    state->vocabulary->size = (int32_t)largest + 1;
    state->vocabulary->tokens =
        calloc((size_t)state->vocabulary->size + 1, sizeof *state->vocabulary->tokens);
    state->symbols = calloc(slots, sizeof *state->symbols);
    state->symbol_mask = slots - 1;
    if (!state->vocabulary->tokens || !state->symbols)
        return FAIL_IN(ST_NO_MEMORY, state->file, "no memory for a vocabulary of %zu symbols",
                       count);
    return ST_OK;
}

static status load_vocab(loading *state, const json_value *vocab)
{
    size_t count = json_count(vocab), longest = 0;
    for (size_t i = 0; i < count; i++) {
        const char *key;
        const json_value *value = json_member(vocab, i, &key);
        symbol_entry entry = {key, strlen(key), (int32_t)json_int(value, 0)};
        if (!entry.size)
            return FAIL_IN(ST_BAD_INPUT, state->file, "model.vocab: token %d has an empty text",
                           entry.id);
        *symbol_slot(state, entry.text, entry.size) = entry;
        longest = entry.size > longest ? entry.size : longest;
    }
    uint8_t *bytes = malloc(longest + 1);
    if (!bytes)
        return FAIL(ST_NO_MEMORY, "no memory for a token of %zu bytes", longest);
    status st = ST_OK;
    for (int j = 0; j < 256; j++)
        state->vocabulary->byte_id[j] = -1;
    for (size_t i = 0; i < count && st == ST_OK; i++) {
        const char *key;
        int32_t id = (int32_t)json_int(json_member(vocab, i, &key), 0);
        if (state->vocabulary->tokens[id].kind != TOKEN_UNUSED) {
            st =
                FAIL_IN(ST_BAD_INPUT, state->file, "model.vocab: \"%.64s\" repeats id %d", key, id);
            break;
        }
        size_t size = symbol_bytes(state, key, strlen(key), bytes);
        if (size == 1)
            state->vocabulary->byte_id[bytes[0]] = id;
        st = loading_put_text(state, id, bytes, size, TOKEN_BASE);
    }
    free(bytes);
    for (int j = 0; j < 256 && st == ST_OK; j++)
        if (state->vocabulary->byte_id[j] < 0)
            st = FAIL_IN(ST_BAD_INPUT, state->file,
                         "model.vocab has no symbol for byte 0x%02X; a byte-level vocabulary has "
                         "all 256",
                         (unsigned)j);
    return st;
}

/* ---- merges ---- */

/* Gives the two halves of merge `index`, which is in one of the two published forms. */
static status merge_halves(const loading *state, const json_value *value, size_t index,
                           const char *half[2], size_t size[2])
{
    if (json_typeof(value) == JSON_TEXT) { /* "a b" */
        const char *text = json_text(value, "");
        size_t all = json_text_size(value);
        const char *space = memchr(text, ' ', all);
        if (!space || memchr(space + 1, ' ', all - (size_t)(space + 1 - text)))
            return FAIL_IN(ST_BAD_INPUT, state->file,
                           "model.merges[%zu] is \"%.64s\", expected two symbols and one space",
                           index, text);
        half[0] = text;
        size[0] = (size_t)(space - text);
        half[1] = space + 1;
        size[1] = all - size[0] - 1;
        return ST_OK;
    }
    if (json_typeof(value) != JSON_ARRAY || json_count(value) != 2)
        return FAIL_IN(ST_BAD_INPUT, state->file,
                       "model.merges[%zu] is %s with %zu items, expected \"a b\" or "
                       "[\"a\", \"b\"]",
                       index, json_type_name(json_typeof(value)), json_count(value));
    for (size_t k = 0; k < 2; k++) { /* ["a", "b"] */
        const json_value *item = json_item(value, k);
        if (json_typeof(item) != JSON_TEXT)
            return FAIL_IN(ST_BAD_INPUT, state->file,
                           "model.merges[%zu][%zu] is %s, expected a text", index, k,
                           json_type_name(json_typeof(item)));
        half[k] = json_text(item, "");
        size[k] = json_text_size(item);
    }
    return ST_OK;
}

static status unknown_symbol(const loading *state, size_t index, const char *text, size_t size)
{
    return FAIL_IN(ST_BAD_INPUT, state->file,
                   "model.merges[%zu] needs the symbol \"%.*s\", which model.vocab does not have",
                   index, (int)(size < 64 ? size : 64), text);
}

static status load_merges(loading *state, const json_value *merges)
{
    size_t count = json_count(merges), capacity = 0;
    char *joined = NULL;
    status st = ST_OK;
    TRY(bpe_merges_init(&state->vocabulary->merges, count));
    for (size_t i = 0; i < count; i++) {
        const char *half[2];
        size_t size[2];
        int32_t id[2];
        TRY_OR(done, merge_halves(state, json_item(merges, i), i, half, size));
        for (int k = 0; k < 2; k++) {
            const symbol_entry *entry = symbol_slot(state, half[k], size[k]);
            if (!entry->text) {
                st = unknown_symbol(state, i, half[k], size[k]);
                goto done;
            }
            id[k] = entry->id;
        }
        size_t all = size[0] + size[1];
        if (all > capacity) {
            capacity = 2 * all;
            free(joined);
            joined = malloc(capacity);
            if (!joined) {
                st = FAIL(ST_NO_MEMORY, "no memory for a merge of %zu bytes", all);
                goto done;
            }
        }
        memcpy(joined, half[0], size[0]);
        memcpy(joined + size[0], half[1], size[1]);
        const symbol_entry *whole = symbol_slot(state, joined, all);
        if (!whole->text) {
            st = unknown_symbol(state, i, joined, all);
            goto done;
        }
        bpe_merges_put(&state->vocabulary->merges,
                       (bpe_merge){id[0], id[1], (int32_t)i, whole->id});
    }
done:
    free(joined);
    return st;
}

status loading_model(loading *state, const json_value *root, const json_value *added)
{
    const json_value *model, *vocab, *merges;
    TRY(loading_required(state, root, "", "model", JSON_OBJECT, &model));
    const json_value *type;
    TRY(loading_optional(state, model, "model", "type", JSON_TEXT,
                         &type)); /* old files have none */
    if (type && strcmp(json_text(type, ""), "BPE"))
        return FAIL_IN(ST_BAD_INPUT, state->file, "model.type is \"%.64s\", expected BPE",
                       json_text(type, ""));
    static const char *const off[] = {
        "dropout",       "unk_token",    "continuing_subword_prefix", "end_of_word_suffix",
        "byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        TRY(loading_must_be_off(state, model, "model", off[i]));
    TRY(loading_required(state, model, "model", "vocab", JSON_OBJECT, &vocab));
    TRY(loading_required(state, model, "model", "merges", JSON_ARRAY, &merges));
    TRY(size_tables(state, vocab, added));
    TRY(load_vocab(state, vocab));
    return load_merges(state, merges);
}
