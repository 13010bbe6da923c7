/* tables.h: compact storage for adapters, which keep something of every sample of a large data set:
 * a pool of texts, a map from ids to positions, and arrays that grow. Start each with {0}. */
#ifndef TESSERA_PREPD_DATASET_TABLES_H
#define TESSERA_PREPD_DATASET_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Terminated texts, one after another. They are named by their offset, because the pool moves while
 * it grows. Offset 0 is the empty text, so that 0 can mean "none". */
typedef struct text_pool {
    char *bytes;
    size_t size, capacity;
} text_pool;

/* Adds `length` bytes and an end; *out is the offset. */
WARN_UNUSED status text_pool_add(text_pool *pool, const char *text, size_t length, int64_t *out);
/* The same with a text made as by printf, cut at STATUS_MESSAGE_MAX. */
WARN_UNUSED status text_pool_format(text_pool *pool, int64_t *out, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
const char *text_pool_at(const text_pool *pool, int64_t offset); /* valid until the next add */
void text_pool_done(text_pool *pool);

/* A hash table with open addressing, which grows as needed.
 * Any id is allowed; values are from 0. */
typedef struct id_slot {
    int64_t id, value; /* the value plus 1; 0 marks a free slot */
} id_slot;
typedef struct id_map {
    id_slot *slots;
    size_t count, capacity; /* the capacity is a power of two */
} id_map;

/* Puts the value under the id unless one is there already. *out is the value that is held now, and
 * *out_new says whether it is the given one. */
WARN_UNUSED status id_map_put(id_map *map, int64_t id, int64_t value, int64_t *out, bool *out_new);
int64_t id_map_get(const id_map *map, int64_t id); /* -1 if there is none */
void id_map_done(id_map *map);

/* Makes room for one more item of `size` bytes in an array of `bytes` items, which may move. */
WARN_UNUSED status array_room(void **items, int64_t bytes, int64_t *capacity, size_t size);

#endif
