/* tokenizer_vocab.c: makes tables from model.vocab and model.merges. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tokenizer/tokenizer_loading.h"
#include "common/tokenizer/tokenizer_text.h"

enum { ID_MAX = 1 << 24 }; /* bounds the tables; the ids of published vocabularies end near 2^18 */

/* ---- texts of ids ---- */

void byte_symbols(int16_t to_byte[BYTE_SYMBOLS_END])
{
    for (int c = 0; c < BYTE_SYMBOLS_END; c++)
        to_byte[c] = -1;
    int16_t next = 0x100; /* bytes that are not printable move here, in order */
    for (int b = 0; b < 256; b++) {
        bool prints = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        to_byte[prints ? b : next++] = (int16_t)b;
    }
}

status loading_put_text(loading *l, int32_t id, const uint8_t *text, size_t size, uint8_t kind)
{
    tokenizer *t = l->vocabulary;
    if (l->bytes_capacity - l->bytes_used < size) {
        size_t capacity = l->bytes_capacity * 2 + size + 4096;
        uint8_t *grown = realloc(t->bytes, capacity);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of vocabulary", capacity);
        t->bytes = grown;
        l->bytes_capacity = capacity;
    }
    memcpy(t->bytes + l->bytes_used, text, size);
    t->tokens[id] = (token_text){(uint32_t)l->bytes_used, (uint32_t)size, kind};
    l->bytes_used += size;
    return ST_OK;
}

/* Writes the bytes that a text of the vocabulary stands for to `out`, which has room for the length
 * of the text. A text with a character outside of the 256 stands for itself, as in the tokenizers
 * library's decoder. */
static size_t symbol_bytes(const loading *l, const char *text, size_t size, uint8_t *out)
{
    size_t n = 0;
    for (size_t i = 0; i < size;) {
        int32_t code;
        i += utf8_next((const uint8_t *)text + i, size - i, &code);
        if (code < 0 || code >= BYTE_SYMBOLS_END || l->to_byte[code] < 0) {
            memcpy(out, text, size);
            return size;
        }
        out[n++] = (uint8_t)l->to_byte[code];
    }
    return n;
}

/* ---- vocabulary ---- */

static symbol_entry *symbol_slot(const loading *l, const char *text, size_t size)
{
    uint64_t h = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < size; i++)
        h = (h ^ (uint8_t)text[i]) * 0x100000001B3u;
    size_t i = (size_t)(h ^ h >> 32) & l->symbol_mask;
    while (l->symbols[i].text &&
           (l->symbols[i].size != size || memcmp(l->symbols[i].text, text, size)))
        i = (i + 1) & l->symbol_mask;
    return &l->symbols[i];
}

/* Checks the id v, whose path in the file is `at`. */
static status check_id(const loading *l, const char *at, const json_value *v)
{
    if (json_typeof(v) != JSON_INT)
        return FAIL_IN(ST_BAD_INPUT, l->file, "%s is %s, expected an integer", at,
                       json_type_name(json_typeof(v)));
    int64_t id = json_int(v, -1);
    if (id < 0 || id >= ID_MAX)
        return FAIL_IN(ST_BAD_INPUT, l->file, "%s is %lld, expected 0 to %d", at, (long long)id,
                       ID_MAX - 1);
    return ST_OK;
}

/* Makes tables with room for every id that the vocabulary and the added tokens name. */
static status size_tables(loading *l, const json_value *vocab, const json_value *added)
{
    int64_t largest = -1;
    size_t n = json_count(vocab);
    for (size_t i = 0; i < n; i++) {
        const char *key;
        const json_value *v = json_member(vocab, i, &key);
        char at[96];
        snprintf(at, sizeof at, "model.vocab[\"%.64s\"]", key);
        TRY(check_id(l, at, v));
        if (json_int(v, 0) > largest)
            largest = json_int(v, 0);
    }
    for (size_t i = 0; i < json_count(added); i++) {
        const json_value *v = json_find(json_item(added, i), "id");
        char at[48];
        snprintf(at, sizeof at, "added_tokens[%zu].id", i);
        if (!v)
            return FAIL_IN(ST_BAD_INPUT, l->file, "%s is missing, expected an integer", at);
        TRY(check_id(l, at, v));
        if (json_int(v, 0) > largest)
            largest = json_int(v, 0);
    }
    size_t slots = 16;
    while (slots < 2 * n)
        slots *= 2;
    l->vocabulary->size = (int32_t)largest + 1;
    l->vocabulary->tokens = calloc((size_t)l->vocabulary->size + 1, sizeof *l->vocabulary->tokens);
    l->symbols = calloc(slots, sizeof *l->symbols);
    l->symbol_mask = slots - 1;
    if (!l->vocabulary->tokens || !l->symbols)
        return FAIL_IN(ST_NO_MEMORY, l->file, "no memory for a vocabulary of %zu symbols", n);
    return ST_OK;
}

static status load_vocab(loading *l, const json_value *vocab)
{
    size_t n = json_count(vocab), longest = 0;
    for (size_t i = 0; i < n; i++) {
        const char *key;
        const json_value *v = json_member(vocab, i, &key);
        symbol_entry e = {key, strlen(key), (int32_t)json_int(v, 0)};
        if (!e.size)
            return FAIL_IN(ST_BAD_INPUT, l->file, "model.vocab: token %d has an empty text", e.id);
        *symbol_slot(l, e.text, e.size) = e;
        longest = e.size > longest ? e.size : longest;
    }
    uint8_t *bytes = malloc(longest + 1);
    if (!bytes)
        return FAIL(ST_NO_MEMORY, "no memory for a token of %zu bytes", longest);
    status st = ST_OK;
    for (int b = 0; b < 256; b++)
        l->vocabulary->byte_id[b] = -1;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        const char *key;
        int32_t id = (int32_t)json_int(json_member(vocab, i, &key), 0);
        if (l->vocabulary->tokens[id].kind != TOKEN_UNUSED) {
            st = FAIL_IN(ST_BAD_INPUT, l->file, "model.vocab: \"%.64s\" repeats id %d", key, id);
            break;
        }
        size_t size = symbol_bytes(l, key, strlen(key), bytes);
        if (size == 1)
            l->vocabulary->byte_id[bytes[0]] = id;
        st = loading_put_text(l, id, bytes, size, TOKEN_BASE);
    }
    free(bytes);
    for (int b = 0; b < 256 && st == ST_OK; b++)
        if (l->vocabulary->byte_id[b] < 0)
            st = FAIL_IN(ST_BAD_INPUT, l->file,
                         "model.vocab has no symbol for byte 0x%02X; a byte-level vocabulary has "
                         "all 256",
                         (unsigned)b);
    return st;
}

/* ---- merges ---- */

/* Gives the two halves of merge i, which is in one of the two published forms. */
static status merge_halves(const loading *l, const json_value *v, size_t i, const char *half[2],
                           size_t size[2])
{
    if (json_typeof(v) == JSON_TEXT) { /* "a b" */
        const char *text = json_text(v, "");
        size_t all = json_text_size(v);
        const char *space = memchr(text, ' ', all);
        if (!space || memchr(space + 1, ' ', all - (size_t)(space + 1 - text)))
            return FAIL_IN(ST_BAD_INPUT, l->file,
                           "model.merges[%zu] is \"%.64s\", expected two symbols and one space", i,
                           text);
        half[0] = text;
        size[0] = (size_t)(space - text);
        half[1] = space + 1;
        size[1] = all - size[0] - 1;
        return ST_OK;
    }
    if (json_typeof(v) != JSON_ARRAY || json_count(v) != 2)
        return FAIL_IN(ST_BAD_INPUT, l->file,
                       "model.merges[%zu] is %s with %zu items, expected \"a b\" or "
                       "[\"a\", \"b\"]",
                       i, json_type_name(json_typeof(v)), json_count(v));
    for (size_t k = 0; k < 2; k++) { /* ["a", "b"] */
        const json_value *item = json_item(v, k);
        if (json_typeof(item) != JSON_TEXT)
            return FAIL_IN(ST_BAD_INPUT, l->file, "model.merges[%zu][%zu] is %s, expected a text",
                           i, k, json_type_name(json_typeof(item)));
        half[k] = json_text(item, "");
        size[k] = json_text_size(item);
    }
    return ST_OK;
}

static status unknown_symbol(const loading *l, size_t i, const char *text, size_t size)
{
    return FAIL_IN(ST_BAD_INPUT, l->file,
                   "model.merges[%zu] needs the symbol \"%.*s\", which model.vocab does not have",
                   i, (int)(size < 64 ? size : 64), text);
}

static status load_merges(loading *l, const json_value *merges)
{
    size_t n = json_count(merges), capacity = 0;
    char *joined = NULL;
    status st = ST_OK;
    TRY(bpe_merges_init(&l->vocabulary->merges, n));
    for (size_t i = 0; i < n; i++) {
        const char *half[2];
        size_t size[2];
        int32_t id[2];
        TRY_OR(done, merge_halves(l, json_item(merges, i), i, half, size));
        for (int k = 0; k < 2; k++) {
            const symbol_entry *e = symbol_slot(l, half[k], size[k]);
            if (!e->text) {
                st = unknown_symbol(l, i, half[k], size[k]);
                goto done;
            }
            id[k] = e->id;
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
        const symbol_entry *whole = symbol_slot(l, joined, all);
        if (!whole->text) {
            st = unknown_symbol(l, i, joined, all);
            goto done;
        }
        bpe_merges_put(&l->vocabulary->merges, (bpe_merge){id[0], id[1], (int32_t)i, whole->id});
    }
done:
    free(joined);
    return st;
}

status loading_model(loading *l, const json_value *root, const json_value *added)
{
    const json_value *model, *vocab, *merges;
    TRY(loading_required(l, root, "", "model", JSON_OBJECT, &model));
    const json_value *type;
    TRY(loading_optional(l, model, "model", "type", JSON_TEXT, &type)); /* old files have none */
    if (type && strcmp(json_text(type, ""), "BPE"))
        return FAIL_IN(ST_BAD_INPUT, l->file, "model.type is \"%.64s\", expected BPE",
                       json_text(type, ""));
    static const char *const off[] = {
        "dropout",       "unk_token",    "continuing_subword_prefix", "end_of_word_suffix",
        "byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        TRY(loading_must_be_off(l, model, "model", off[i]));
    TRY(loading_required(l, model, "model", "vocab", JSON_OBJECT, &vocab));
    TRY(loading_required(l, model, "model", "merges", JSON_ARRAY, &merges));
    TRY(size_tables(l, vocab, added));
    TRY(load_vocab(l, vocab));
    return load_merges(l, merges);
}
