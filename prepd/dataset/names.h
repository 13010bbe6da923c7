/* names.h: the distinct file names of a data set, numbered in the order in which they first appear,
 * and two questions that adapters ask about names. */
#ifndef TESSERA_PREPD_DATASET_NAMES_H
#define TESSERA_PREPD_DATASET_NAMES_H

#include "prepd/dataset/tables.h"

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
/* Gives the name a number of its own, even if the list has it already. */
WARN_UNUSED status name_list_append(name_list *list, const char *name, size_t length, int64_t *out);
const char *name_list_at(const name_list *list, int64_t index); /* valid until the next add */
/* Gives back the memory that only name_list_add and name_list_find need; no add may follow. */
void name_list_seal(name_list *list);
void name_list_done(name_list *list);

/* Whether a path stays below the folder that it starts from: it is relative, is not empty and has
 * no "..". */
bool path_stays_inside(const char *path);

/* Whether the split is a word of the name's first `length` bytes: no letter stands before or after
 * it. "val" also matches "validation". */
bool name_has_split(const char *name, size_t length, const char *split);

#endif
