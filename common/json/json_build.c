/* SPDX-License-Identifier: Apache-2.0 */
/* json_build.c: the builder of json_tree.h, and the tables in which keys of large objects are
 * found. */
#include "common/json/json_tree.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/span.h"

/* Objects of at most this many members are searched one member after another, without a table. */
enum { SMALL_OBJECT = 8, TEXT_CHUNK = 16 * 1024 };

void json_builder_init(json_builder *builder, arena *memory)
{
    memset(builder, 0, sizeof *builder);
    builder->memory = memory;
}

void json_builder_done(json_builder *builder)
{
    free(builder->pairs);
    builder->pairs = NULL;
    builder->capacity = 0;
}

void json_builder_reset(json_builder *builder)
{
    builder->text_room = NULL;
    builder->text_left = 0;
    builder->n_pairs = 0;
    builder->n_values = 0;
    builder->depth = 0;
    builder->key = NULL;
    builder->key_size = 0;
}

/* Copies a text and ends it with a NUL. Short texts share chunks, because the arena would align
 * each of them to 64 bytes. */
static status keep_text(json_builder *builder, const char *string, size_t size, const char **out)
{
    if (size >= TEXT_CHUNK / 4) {
        char *own;
        TRY(arena_strndup(builder->memory, string, size, &own));
        *out = own;
        return ST_OK;
    }
    if (size + 1 > builder->text_left) {
        void *chunk;
        TRY(arena_alloc(builder->memory, TEXT_CHUNK, &chunk));
        builder->text_room = (char *)chunk;
        builder->text_left = TEXT_CHUNK;
    }
    char *to = builder->text_room;
    if (size)
        memcpy(to, string, size);
    to[size] = 0;
    builder->text_room += size + 1;
    builder->text_left -= size + 1;
    *out = to;
    return ST_OK;
}

status json_builder_key(json_builder *builder, const char *key, size_t size)
{
    TRY(keep_text(builder, key, size, &builder->key));
    builder->key_size = size;
    return ST_OK;
}

status json_builder_scalar(json_builder *builder, json_value value)
{
    if (builder->n_pairs == builder->capacity) {
        size_t wanted = builder->capacity ? 2 * builder->capacity : 64;
        json_pair *grown = NULL;
        if (wanted < UINT32_MAX)
            grown = (json_pair *)realloc(builder->pairs, wanted * sizeof *grown);
        if (!grown)
            return FAIL(ST_NO_MEMORY, "no memory for a JSON value of %zu children",
                        builder->n_pairs);
        builder->pairs = grown;
        builder->capacity = wanted;
    }
    if (++builder->n_values > JSON_MAX_VALUES)
        return FAIL(ST_BAD_INPUT, "more than %d values", JSON_MAX_VALUES);
    json_pair pair = {builder->key, builder->key_size, value};
    builder->pairs[builder->n_pairs++] = pair;
    builder->key = NULL;
    builder->key_size = 0;
    return ST_OK;
}

status json_builder_text(json_builder *builder, const char *string, size_t size)
{
    json_value value = {.type = JSON_TEXT};
    TRY(keep_text(builder, string, size, &value.as.text.bytes));
    value.as.text.size = size;
    return json_builder_scalar(builder, value);
}

/* Puts an empty container on the stack at once, so that its key is kept there until it ends. */
status json_builder_begin(json_builder *builder, bool is_object)
{
    if (builder->depth == JSON_MAX_DEPTH)
        return FAIL(ST_BAD_INPUT, "nested deeper than %d levels", JSON_MAX_DEPTH);
    json_value value = {.type = is_object ? JSON_OBJECT : JSON_ARRAY};
    TRY(json_builder_scalar(builder, value));
    json_frame frame = {builder->n_pairs, is_object};
    builder->frames[builder->depth++] = frame;
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

/* The slots of a table for `count` keys: a power of two that is at most half full. */
static uint32_t table_size(uint32_t count)
{
    uint32_t size = 16;
    while (size < UINT32_MAX / 2 && size / 2 < count)
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

static status check_small(const json_pair *pairs, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (same_key(&pairs[j], pairs[i].key, pairs[i].key_size))
                return duplicate_key(&pairs[i]);
    return ST_OK;
}

static status make_table(json_builder *builder, const json_pair *pairs, uint32_t count,
                         const uint32_t **out)
{
    const uint32_t size = table_size(count), mask = size - 1;
    void *room;
    TRY(arena_calloc(builder->memory, size, sizeof(uint32_t), &room));
    uint32_t *table = (uint32_t *)room;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = key_hash(pairs[i].key, pairs[i].key_size) & mask;
        for (; table[at]; at = (at + 1) & mask)
            if (same_key(&pairs[table[at] - 1], pairs[i].key, pairs[i].key_size))
                return duplicate_key(&pairs[i]);
        table[at] = i + 1;
    }
    *out = table;
    return ST_OK;
}

static status end_object(json_builder *builder, const json_pair *children, json_value *value)
{
    void *room;
    TRY(arena_alloc(builder->memory, value->count * sizeof(json_pair), &room));
    if (value->count)
        memcpy(room, children, value->count * sizeof(json_pair));
    value->as.object.pairs = (const json_pair *)room;
    value->as.object.table = NULL;
    if (value->count <= SMALL_OBJECT)
        return check_small(value->as.object.pairs, value->count);
    return make_table(builder, value->as.object.pairs, value->count, &value->as.object.table);
}

static status end_array(json_builder *builder, const json_pair *children, json_value *value)
{
    void *room;
    TRY(arena_alloc(builder->memory, value->count * sizeof(json_value), &room));
    json_value *items = (json_value *)room;
    for (uint32_t i = 0; i < value->count; i++)
        items[i] = children[i].value;
    value->as.items = items;
    return ST_OK;
}

status json_builder_end(json_builder *builder)
{
    json_frame frame = builder->frames[--builder->depth];
    const json_pair *children = builder->pairs + frame.first;
    json_value *value = &builder->pairs[frame.first - 1].value;
    value->count = (uint32_t)(builder->n_pairs - frame.first);
    builder->n_pairs = frame.first;
    return frame.is_object ? end_object(builder, children, value)
                           : end_array(builder, children, value);
}

const json_value *json_builder_value(const json_builder *builder)
{
    return builder->depth == 0 && builder->n_pairs == 1 ? &builder->pairs[0].value : NULL;
}
