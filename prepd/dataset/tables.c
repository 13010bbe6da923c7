/* SPDX-License-Identifier: Apache-2.0 */
/* tables.c: the text pool, the id map (linear probing, at most half full) and growing arrays. */
#include "prepd/dataset/tables.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/hash.h"

static status pool_room(text_pool *pool, size_t count)
{
    size_t want;
    if (__builtin_add_overflow(pool->size, count, &want))
        return FAIL(ST_NO_MEMORY, "no memory for texts of over %zu bytes", pool->size);
    if (want <= pool->capacity)
        return ST_OK;
    size_t capacity = pool->capacity < 4096 ? 4096 : 2 * pool->capacity;
    if (capacity < want)
        capacity = want;
    char *grown = (char *)realloc(pool->bytes, capacity);
    if (!grown)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of texts", capacity);
    pool->bytes = grown;
    pool->capacity = capacity;
    return ST_OK;
}

status text_pool_add(text_pool *pool, const char *text, size_t length, int64_t *out)
{
    TRY(pool_room(pool, length + 2));
    if (pool->size == 0)
        pool->bytes[pool->size++] = 0;
    if (length == 0) {
        *out = 0;
        return ST_OK;
    }
    *out = (int64_t)pool->size;
    memcpy(pool->bytes + pool->size, text, length);
    pool->size += length;
    pool->bytes[pool->size++] = 0;
    return ST_OK;
}

status text_pool_format(text_pool *pool, int64_t *out, const char *format, ...)
{
    char text[STATUS_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length < 0)
        length = 0;
    return text_pool_add(pool, text,
                         (size_t)length < sizeof text ? (size_t)length : sizeof text - 1, out);
}

const char *text_pool_at(const text_pool *pool, int64_t offset)
{
    return pool->size ? pool->bytes + offset : "";
}

void text_pool_done(text_pool *pool)
{
    free(pool->bytes);
    memset(pool, 0, sizeof *pool);
}

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014). Ids are often consecutive, and would
 * otherwise fill neighbouring slots. */
static uint64_t hash_id(uint64_t id)
{
    id = (id ^ id >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    id = (id ^ id >> 27) * UINT64_C(0x94d049bb133111eb);
    return id ^ id >> 31;
}

static id_slot *find_slot(id_slot *slots, size_t capacity, int64_t id)
{
    size_t at = (size_t)hash_id((uint64_t)id) & (capacity - 1);
    while (slots[at].value && slots[at].id != id)
        at = (at + 1) & (capacity - 1);
    return &slots[at];
}

static status map_grow(id_map *map)
{
    size_t capacity = map->capacity ? 2 * map->capacity : 1024;
    id_slot *slots = (id_slot *)calloc(capacity, sizeof *slots);
    if (!slots)
        return FAIL(ST_NO_MEMORY, "no memory for a table of %zu ids", capacity);
    for (size_t i = 0; i < map->capacity; i++)
        if (map->slots[i].value)
            *find_slot(slots, capacity, map->slots[i].id) = map->slots[i];
    free(map->slots);
    map->slots = slots;
    map->capacity = capacity;
    return ST_OK;
}

status id_map_put(id_map *map, int64_t id, int64_t value, int64_t *out, bool *out_new)
{
    if (2 * (map->count + 1) > map->capacity)
        TRY(map_grow(map));
    id_slot *slot = find_slot(map->slots, map->capacity, id);
    *out_new = slot->value == 0;
    if (*out_new) {
        *slot = (id_slot){id, value + 1};
        map->count++;
    }
    *out = slot->value - 1;
    return ST_OK;
}

int64_t id_map_get(const id_map *map, int64_t id)
{
    return map->capacity ? find_slot(map->slots, map->capacity, id)->value - 1 : -1;
}

void id_map_done(id_map *map)
{
    free(map->slots);
    memset(map, 0, sizeof *map);
}

status array_room(void **items, int64_t bytes, int64_t *capacity, size_t size)
{
    if (bytes < *capacity)
        return ST_OK;
    int64_t more = *capacity ? 2 * *capacity : 256;
    void *grown = realloc(*items, (size_t)more * size);
    if (!grown)
        return FAIL(ST_NO_MEMORY, "no memory for %lld records", (long long)more);
    *items = grown;
    *capacity = more;
    return ST_OK;
}

/* Names in a text pool, found again by a hash map. Two names with the same hash get
 * neighbouring keys of that map. */

/* The number of a name; or -1, and in *out_key the key that is free for it. The first key tried is
 * the hash of the name; the next ones belong to other names of the same hash. */
static int64_t look_up(const name_list *list, const char *name, size_t length, int64_t *out_key)
{
    const hash128 hash = hash_bytes(name, length);
    memcpy(out_key, hash.bytes, sizeof *out_key);
    for (;; (*out_key)++) {
        const int64_t at = id_map_get(&list->by_hash, *out_key);
        const char *there = at < 0 ? NULL : text_pool_at(&list->texts, list->at[at]);
        if (!there || (strlen(there) == length && memcmp(there, name, length) == 0))
            return at;
    }
}

int64_t name_list_find(const name_list *list, const char *name, size_t length)
{
    int64_t key;
    return look_up(list, name, length, &key);
}

status name_list_add(name_list *list, const char *name, size_t length, int32_t *out)
{
    int64_t key;
    bool is_new;
    int64_t at = look_up(list, name, length, &key);
    if (at < 0) {
        TRY(id_map_put(&list->by_hash, key, list->count, &at, &is_new));
        TRY(name_list_append(list, name, length, &at));
    }
    *out = (int32_t)at;
    return ST_OK;
}

status name_list_append(name_list *list, const char *name, size_t length, int64_t *out)
{
    if (list->count == INT32_MAX)
        return FAIL(ST_BAD_INPUT, "the data set has more than %d files", INT32_MAX);
    TRY(array_room((void **)&list->at, list->count, &list->capacity, sizeof *list->at));
    TRY(text_pool_add(&list->texts, name, length, &list->at[list->count]));
    *out = list->count++;
    return ST_OK;
}

const char *name_list_at(const name_list *list, int64_t index)
{
    return text_pool_at(&list->texts, list->at[index]);
}

void name_list_seal(name_list *list)
{
    id_map_done(&list->by_hash);
}

void name_list_done(name_list *list)
{
    id_map_done(&list->by_hash);
    text_pool_done(&list->texts);
    free(list->at);
    *list = (name_list){0};
}

bool path_stays_inside(const char *path)
{
    if (path[0] == '/' || path[0] == 0)
        return false;
    for (const char *at = path; at; at = strchr(at, '/')) {
        at += *at == '/';
        if (strncmp(at, "..", 2) == 0 && (at[2] == '/' || at[2] == 0))
            return false;
    }
    return true;
}

bool is_picture_ending(const char *ending)
{
    static const char *const endings[] = {
#define PICTURE_FORMAT(id, loader, operation, title, first_bytes, ...) __VA_ARGS__,
#include "prepd/dataset/picture_formats.def"
    };
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (strcasecmp(ending, endings[i]) == 0)
            return true;
    return false;
}

static bool is_letter(char letter)
{
    return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
}

bool name_has_split(const char *name, size_t length, const char *split)
{
    size_t split_length = strlen(split);
    for (size_t at = 0; at + split_length <= length; at++) {
        const char *after = name + at + split_length;
        size_t left = length - at - split_length;
        if (strncmp(name + at, split, split_length) != 0 || (at && is_letter(name[at - 1])))
            continue;
        if (left >= 7 && strcmp(split, "val") == 0 && strncmp(after, "idation", 7) == 0)
            after += 7, left -= 7;
        if (left == 0 || !is_letter(*after))
            return true;
    }
    return false;
}
