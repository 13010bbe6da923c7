/* tables.h: compact storage for adapters: a pool of texts and a map from ids to positions. */
#ifndef TESSERA_PREPD_DATASET_TABLES_H
#define TESSERA_PREPD_DATASET_TABLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Terminated texts one after another; named by offset, because the pool moves while it grows.
 * Offset 0 is the empty text. */
typedef struct text_pool {
    char *bytes;
    size_t size, capacity;
} text_pool;

WARN_UNUSED status text_pool_add(text_pool *p, const char *s, size_t n, int64_t *out);
WARN_UNUSED status text_pool_format(text_pool *p, int64_t *out, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Valid until the next add. */
const char *text_pool_at(const text_pool *p, int64_t offset);
void text_pool_done(text_pool *p);

/* Open addressing; grows. Any id is allowed. */
typedef struct id_slot {
    int64_t id, value; /* value + 1; 0 = free */
} id_slot;
typedef struct id_map {
    id_slot *slots;
    size_t n, capacity; /* capacity a power of two */
} id_map;

/* The value under id, or puts it there: *out is the value now held, *out_new whether it is ours. */
WARN_UNUSED status id_map_put(id_map *m, int64_t id, int64_t value, int64_t *out, bool *out_new);
int64_t id_map_get(const id_map *m, int64_t id); /* -1 if absent */
void id_map_done(id_map *m);

/* Room for one more item of `size` bytes in a growing array. */
WARN_UNUSED status array_room(void **items, int64_t n, int64_t *capacity, size_t size);

#endif
