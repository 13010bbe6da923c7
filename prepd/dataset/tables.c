#include "prepd/dataset/tables.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static status pool_room(text_pool *p, size_t n)
{
    size_t want;
    if (__builtin_add_overflow(p->size, n, &want))
        return FAIL(ST_NO_MEMORY, "texts of over %zu bytes", p->size);
    if (want <= p->capacity)
        return ST_OK;
    size_t capacity = p->capacity < 4096 ? 4096 : 2 * p->capacity;
    if (capacity < want)
        capacity = want;
    char *grown = (char *)realloc(p->bytes, capacity);
    if (!grown)
        return FAIL(ST_NO_MEMORY, "no memory for %zu bytes of texts", capacity);
    p->bytes = grown;
    p->capacity = capacity;
    return ST_OK;
}

status text_pool_add(text_pool *p, const char *s, size_t n, int64_t *out)
{
    TRY(pool_room(p, n + 2));
    if (p->size == 0)
        p->bytes[p->size++] = 0;
    if (n == 0) {
        *out = 0;
        return ST_OK;
    }
    *out = (int64_t)p->size;
    memcpy(p->bytes + p->size, s, n);
    p->size += n;
    p->bytes[p->size++] = 0;
    return ST_OK;
}

status text_pool_format(text_pool *p, int64_t *out, const char *fmt, ...)
{
    char text[STATUS_MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0)
        n = 0;
    return text_pool_add(p, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, out);
}

const char *text_pool_at(const text_pool *p, int64_t offset)
{
    return p->size ? p->bytes + offset : "";
}

void text_pool_done(text_pool *p)
{
    free(p->bytes);
    memset(p, 0, sizeof *p);
}

/* Finaliser of SplitMix64 (Steele, Lea, Flood 2014): ids are often consecutive. */
static uint64_t hash_id(uint64_t v)
{
    v = (v ^ v >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    v = (v ^ v >> 27) * UINT64_C(0x94d049bb133111eb);
    return v ^ v >> 31;
}

static id_slot *find_slot(id_slot *slots, size_t capacity, int64_t id)
{
    size_t at = (size_t)hash_id((uint64_t)id) & (capacity - 1);
    while (slots[at].value && slots[at].id != id)
        at = (at + 1) & (capacity - 1);
    return &slots[at];
}

static status map_grow(id_map *m)
{
    size_t capacity = m->capacity ? 2 * m->capacity : 1024;
    id_slot *slots = (id_slot *)calloc(capacity, sizeof *slots);
    if (!slots)
        return FAIL(ST_NO_MEMORY, "no memory for a table of %zu ids", capacity);
    for (size_t i = 0; i < m->capacity; i++)
        if (m->slots[i].value)
            *find_slot(slots, capacity, m->slots[i].id) = m->slots[i];
    free(m->slots);
    m->slots = slots;
    m->capacity = capacity;
    return ST_OK;
}

status id_map_put(id_map *m, int64_t id, int64_t value, int64_t *out, bool *out_new)
{
    if (2 * (m->n + 1) > m->capacity)
        TRY(map_grow(m));
    id_slot *slot = find_slot(m->slots, m->capacity, id);
    *out_new = slot->value == 0;
    if (*out_new) {
        *slot = (id_slot){id, value + 1};
        m->n++;
    }
    *out = slot->value - 1;
    return ST_OK;
}

int64_t id_map_get(const id_map *m, int64_t id)
{
    return m->capacity ? find_slot(m->slots, m->capacity, id)->value - 1 : -1;
}

void id_map_done(id_map *m)
{
    free(m->slots);
    memset(m, 0, sizeof *m);
}

status array_room(void **items, int64_t n, int64_t *capacity, size_t size)
{
    if (n < *capacity)
        return ST_OK;
    int64_t more = *capacity ? 2 * *capacity : 256;
    void *grown = realloc(*items, (size_t)more * size);
    if (!grown)
        return FAIL(ST_NO_MEMORY, "no memory for %lld records", (long long)more);
    *items = grown;
    *capacity = more;
    return ST_OK;
}
