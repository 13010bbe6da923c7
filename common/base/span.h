/* span.h: a run of borrowed bytes with its length, and loads and stores of little-endian numbers.
 * Code that reads bytes from outside checks its bounds with span_holds before it loads, so that the
 * check is written once and is safe against overflow. */
#ifndef TESSERA_COMMON_BASE_SPAN_H
#define TESSERA_COMMON_BASE_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct span {
    const uint8_t *data; /* borrowed */
    size_t size;         /* bytes */
} span;

static inline span span_of(const void *data, size_t size)
{
    span s = {(const uint8_t *)data, size};
    return s;
}

/* Whether the bytes [offset, offset + size) lie inside the span; cannot overflow. */
static inline bool span_holds(span s, uint64_t offset, uint64_t size)
{
    return offset <= s.size && size <= s.size - offset;
}

/* Loads and stores of little-endian numbers at any alignment. The caller has checked the bounds. */
static inline uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t load_u64(const uint8_t *p)
{
    return (uint64_t)load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

static inline void store_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void store_u32(uint8_t *p, uint32_t v)
{
    store_u16(p, (uint16_t)v);
    store_u16(p + 2, (uint16_t)(v >> 16));
}

static inline void store_u64(uint8_t *p, uint64_t v)
{
    store_u32(p, (uint32_t)v);
    store_u32(p + 4, (uint32_t)(v >> 32));
}

#endif
