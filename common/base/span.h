/* SPDX-License-Identifier: Apache-2.0 */
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
    span bytes = {(const uint8_t *)data, size};
    return bytes;
}

/* Whether the bytes [offset, offset + size) lie inside the span; cannot overflow. */
static inline bool span_holds(span bytes, uint64_t offset, uint64_t size)
{
    return offset <= bytes.size && size <= bytes.size - offset;
}

/* Loads and stores of little-endian numbers at any alignment. The caller has checked the bounds. */
static inline uint16_t load_u16(const uint8_t *from)
{
    return (uint16_t)(from[0] | from[1] << 8);
}

static inline uint32_t load_u32(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

static inline uint64_t load_u64(const uint8_t *from)
{
    return (uint64_t)load_u32(from) | (uint64_t)load_u32(from + 4) << 32;
}

static inline void store_u16(uint8_t *to, uint16_t value)
{
    to[0] = (uint8_t)value;
    to[1] = (uint8_t)(value >> 8);
}

static inline void store_u32(uint8_t *to, uint32_t value)
{
    store_u16(to, (uint16_t)value);
    store_u16(to + 2, (uint16_t)(value >> 16));
}

static inline void store_u64(uint8_t *to, uint64_t value)
{
    store_u32(to, (uint32_t)value);
    store_u32(to + 4, (uint32_t)(value >> 32));
}

#endif
