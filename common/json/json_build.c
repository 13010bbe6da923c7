/* json_build.c: the builder of json_tree.h, and the tables in which keys of large objects are
 * found. */
#include "common/json/json_tree.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/span.h"

/* Objects of at most this many members are searched one member after another, without a table. */
enum { SMALL_OBJECT = 8, TEXT_CHUNK = 16 * 1024 };

void json_builder_init(json_builder *b, arena *memory)
{
    memset(b, 0, sizeof *b);
    b->memory = memory;
}

void json_builder_done(json_builder *b)
{
    free(b->pairs);
    b->pairs = NULL;
    b->capacity = 0;
}

void json_builder_reset(json_builder *b)
{
    b->text_room = NULL;
    b->text_left = 0;
    b->n_pairs = 0;
    b->n_values = 0;
    b->depth = 0;
    b->key = NULL;
    b->key_size = 0;
}

/* Copies a text and ends it with a NUL. Short texts share chunks, because the arena would align
 * each of them to 64 bytes. */
static status keep_text(json_builder *b, const char *s, size_t size, const char **out)
{
    if (size >= TEXT_CHUNK / 4) {
        char *own;
        TRY(arena_strndup(b->memory, s, size, &own));
        *out = own;
        return ST_OK;
    }
    if (size + 1 > b->text_left) {
        void *chunk;
        TRY(arena_alloc(b->memory, TEXT_CHUNK, &chunk));
        b->text_room = (char *)chunk;
        b->text_left = TEXT_CHUNK;
    }
    char *to = b->text_room;
    if (size)
        memcpy(to, s, size);
    to[size] = 0;
    b->text_room += size + 1;
    b->text_left -= size + 1;
    *out = to;
    return ST_OK;
}

status json_builder_key(json_builder *b, const char *key, size_t size)
{
    TRY(keep_text(b, key, size, &b->key));
    b->key_size = size;
    return ST_OK;
}

status json_builder_scalar(json_builder *b, json_value v)
{
    if (b->n_pairs == b->capacity) {
        size_t wanted = b->capacity ? 2 * b->capacity : 64;
        json_pair *grown = NULL;
        if (wanted < UINT32_MAX)
            grown = (json_pair *)realloc(b->pairs, wanted * sizeof *grown);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for a JSON value of %zu children", b->n_pairs);
        b->pairs = grown;
        b->capacity = wanted;
    }
    if (++b->n_values > JSON_MAX_VALUES)
        return FAIL(ST_BAD_INPUT, "more than %d values", JSON_MAX_VALUES);
    json_pair pair = {b->key, b->key_size, v};
    b->pairs[b->n_pairs++] = pair;
    b->key = NULL;
    b->key_size = 0;
    return ST_OK;
}

status json_builder_text(json_builder *b, const char *s, size_t size)
{
    json_value v = {.type = JSON_TEXT};
    TRY(keep_text(b, s, size, &v.as.text.bytes));
    v.as.text.size = size;
    return json_builder_scalar(b, v);
}

/* Puts an empty container on the stack at once, so that its key is kept there until it ends. */
status json_builder_begin(json_builder *b, bool is_object)
{
    if (b->depth == JSON_MAX_DEPTH)
        return FAIL(ST_BAD_INPUT, "nested deeper than %d levels", JSON_MAX_DEPTH);
    json_value v = {.type = is_object ? JSON_OBJECT : JSON_ARRAY};
    TRY(json_builder_scalar(b, v));
    json_frame frame = {b->n_pairs, is_object};
    b->frames[b->depth++] = frame;
    return ST_OK;
}

static status duplicate_key(const json_pair *pair)
{
    return FAIL(ST_BAD_INPUT, "an object has the key \"%.200s\" twice", pair->key);
}

static bool same_key(const json_pair *pair, const char *key, size_t size)
{
    return pair->key_size == size && (size == 0 || memcmp(pair->key, key, size) == 0);
}

static uint32_t key_hash(const char *key, size_t size)
{
    return load_u32(hash_bytes(key, size).bytes);
}

/* The slots of a table for n keys: a power of two that is at most half full. */
static uint32_t table_size(uint32_t n)
{
    uint32_t size = 16;
    while (size < UINT32_MAX / 2 && size / 2 < n)
        size *= 2;
    return size;
}

int64_t json_table_find(const json_value *object, const char *key, size_t size)
{
    const uint32_t mask = table_size(object->count) - 1;
    for (uint32_t at = key_hash(key, size) & mask;; at = (at + 1) & mask) {
        uint32_t entry = object->as.object.table[at];
        if (entry == 0)
            return -1;
        if (same_key(&object->as.object.pairs[entry - 1], key, size))
            return entry - 1;
    }
}

static status check_small(const json_pair *pairs, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t j = 0; j < i; j++)
            if (same_key(&pairs[j], pairs[i].key, pairs[i].key_size))
                return duplicate_key(&pairs[i]);
    return ST_OK;
}

static status make_table(json_builder *b, const json_pair *pairs, uint32_t n, const uint32_t **out)
{
    const uint32_t size = table_size(n), mask = size - 1;
    void *room;
    TRY(arena_calloc(b->memory, size, sizeof(uint32_t), &room));
    uint32_t *table = (uint32_t *)room;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = key_hash(pairs[i].key, pairs[i].key_size) & mask;
        for (; table[at]; at = (at + 1) & mask)
            if (same_key(&pairs[table[at] - 1], pairs[i].key, pairs[i].key_size))
                return duplicate_key(&pairs[i]);
        table[at] = i + 1;
    }
    *out = table;
    return ST_OK;
}

static status end_object(json_builder *b, const json_pair *children, json_value *v)
{
    void *room;
    TRY(arena_alloc(b->memory, v->count * sizeof(json_pair), &room));
    if (v->count)
        memcpy(room, children, v->count * sizeof(json_pair));
    v->as.object.pairs = (const json_pair *)room;
    v->as.object.table = NULL;
    if (v->count <= SMALL_OBJECT)
        return check_small(v->as.object.pairs, v->count);
    return make_table(b, v->as.object.pairs, v->count, &v->as.object.table);
}

static status end_array(json_builder *b, const json_pair *children, json_value *v)
{
    void *room;
    TRY(arena_alloc(b->memory, v->count * sizeof(json_value), &room));
    json_value *items = (json_value *)room;
    for (uint32_t i = 0; i < v->count; i++)
        items[i] = children[i].value;
    v->as.items = items;
    return ST_OK;
}

status json_builder_end(json_builder *b)
{
    json_frame frame = b->frames[--b->depth];
    const json_pair *children = b->pairs + frame.first;
    json_value *v = &b->pairs[frame.first - 1].value;
    v->count = (uint32_t)(b->n_pairs - frame.first);
    b->n_pairs = frame.first;
    return frame.is_object ? end_object(b, children, v) : end_array(b, children, v);
}

const json_value *json_builder_value(const json_builder *b)
{
    return b->depth == 0 && b->n_pairs == 1 ? &b->pairs[0].value : NULL;
}
