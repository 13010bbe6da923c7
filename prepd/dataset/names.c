/* names.c: names in a text pool, found again by a hash map. Two names with the same hash get
 * neighbouring keys of that map. */
#include "prepd/dataset/names.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"

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
