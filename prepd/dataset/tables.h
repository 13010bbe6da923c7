/* SPDX-License-Identifier: Apache-2.0 */
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

/* The distinct file names of a data set, numbered in the order in which they first appear,
 * and two questions that adapters ask about names. */

/* Start it with {0}. */
typedef struct name_list {
    text_pool texts;
    int64_t *at; /* [count] offset of each name in texts */
    int64_t count, capacity;
    id_map by_hash; /* hash of a name -> its number */
} name_list;

/* The number of a name of `length` bytes; a name that is not in the list yet gets the next one.
 * ST_BAD_INPUT beyond 2^31 - 1 names. */
WARN_UNUSED status name_list_add(name_list *list, const char *name, size_t length, int32_t *out);
/* The number of a name, or -1 if it is not in the list. */
int64_t name_list_find(const name_list *list, const char *name, size_t length);
/* Gives the name its own number, even if the list has it already. */
WARN_UNUSED status name_list_append(name_list *list, const char *name, size_t length, int64_t *out);
const char *name_list_at(const name_list *list, int64_t index); /* valid until the next add */
/* Gives back the memory that only name_list_add and name_list_find need; no add may follow. */
void name_list_seal(name_list *list);
void name_list_done(name_list *list);

/* Whether a path stays below the folder that it starts from: it is relative, is not empty and has
 * no "..". */
bool path_stays_inside(const char *path);

/* Whether file names of pictures end so, in any case of letters: "jpg", "PNG"
 * (picture_formats.def). */
bool is_picture_ending(const char *ending);

/* Whether the split is a word of the name's first `length` bytes: no letter stands before or after
 * it. "val" also matches "validation". */
bool name_has_split(const char *name, size_t length, const char *split);

#endif
