/* json_tree.h: inside of json.h: how values lie in memory, and the builder that the parser feeds.
 *
 * A document is one arena. A container's children lie side by side, so the i-th is found at once;
 * an object of many members carries a table of its keys. Values do not change after building. */
#ifndef TESSERA_COMMON_JSON_TREE_H
#define TESSERA_COMMON_JSON_TREE_H

#include "common/base/arena.h"
#include "common/json/json.h"

typedef struct json_pair json_pair;

struct json_value {
    json_type type;
    uint32_t n; /* items, members */
    union {
        bool yes;
        int64_t integer;
        double real;
        struct {
            const char *bytes; /* terminated */
            size_t size;
        } text;
        const json_value *items; /* [n] */
        struct {
            const json_pair *pairs; /* [n], file order */
            const uint32_t *table;  /* open addressing, 1 + index or 0; NULL for small objects */
        } object;
    } as;
};

struct json_pair {
    const char *key; /* terminated */
    size_t key_size;
    json_value value;
};

/* Nesting beyond this is refused: whoever walks a value may recurse. */
enum { JSON_MAX_DEPTH = 256 };

/* More are refused: each costs about a hundred bytes. Above the limit of an item, which its reader
 * finds between two pieces of input. */
enum { JSON_MAX_VALUES = JSON_ITEM_VALUES + (1 << 20) };

typedef struct json_frame {
    size_t first; /* of its children in the stack of pairs */
    bool is_object;
} json_frame;

/* Turns events into one value. Children wait on a stack until their container ends and they can be
 * laid side by side. */
typedef struct json_builder {
    arena *memory; /* borrowed */
    char *text_room;
    size_t text_left;
    json_pair *pairs; /* heap stack; kept between values */
    size_t n_pairs, capacity;
    size_t n_values; /* built since the beginning or the last reset */
    json_frame frames[JSON_MAX_DEPTH];
    int depth;
    const char *key; /* of the value to come */
    size_t key_size;
} json_builder;

void json_builder_init(json_builder *b, arena *memory);
void json_builder_done(json_builder *b);
/* Forgets a half-built value and what lies in the arena (which the caller has reset). */
void json_builder_reset(json_builder *b);

WARN_UNUSED status json_builder_key(json_builder *b, const char *key, size_t size);
WARN_UNUSED status json_builder_text(json_builder *b, const char *s, size_t size);
WARN_UNUSED status json_builder_scalar(json_builder *b, json_value v);
WARN_UNUSED status json_builder_begin(json_builder *b, bool is_object);
WARN_UNUSED status json_builder_end(json_builder *b);
/* The finished value, when depth is 0 and something was built; else NULL. */
const json_value *json_builder_value(const json_builder *b);

/* Index of the key in a large object's table, or -1. */
int64_t json_table_find(const json_value *object, const char *key, size_t size);

#endif
