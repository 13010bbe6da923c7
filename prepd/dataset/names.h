/* names.h: distinct file names of a data set, numbered in order of first appearance. */
#ifndef TESSERA_PREPD_DATASET_NAMES_H
#define TESSERA_PREPD_DATASET_NAMES_H

#include "prepd/dataset/tables.h"

typedef struct name_list {
    text_pool texts;
    int64_t *at; /* [n] in texts */
    int64_t n, capacity;
    id_map by_hash;
} name_list;

/* Number of the name, given a new one if it is new. ST_BAD_INPUT beyond 2^31 - 1 names. */
WARN_UNUSED status name_list_add(name_list *l, const char *name, size_t n, int32_t *out);
/* Number of the name, -1 if it has none. */
int64_t name_list_find(const name_list *l, const char *name, size_t n);
/* A number of its own even if the name is there already. */
WARN_UNUSED status name_list_append(name_list *l, const char *name, size_t n, int64_t *out);
const char *name_list_at(const name_list *l, int64_t i); /* valid until the next add */
void name_list_seal(name_list *l);                       /* no add follows: gives memory back */
void name_list_done(name_list *l);

/* True for a path that stays under its root: relative, not empty, no "..". */
bool path_stays_inside(const char *path);

/* True if the split is a word of the name's first n bytes; "val" is also "validation". */
bool name_has_split(const char *name, size_t n, const char *split);

#endif
