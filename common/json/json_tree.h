/* SPDX-License-Identifier: Apache-2.0 */
/* json_tree.h: how values lie in memory, and the builder that makes them from the parser's events.
 * Used inside of common/json only.
 *
 * A document is one arena. The children of a container lie side by side, so the i-th is found at
 * once; an object of many members has a hash table of its keys. Values never change once built. */
#ifndef TESSERA_COMMON_JSON_TREE_H
#define TESSERA_COMMON_JSON_TREE_H

#include "common/base/arena.h"
#include "common/json/json.h"

typedef struct json_pair json_pair;

struct json_value {
    json_type type;
    uint32_t count; /* number of items or members */
    union {
        bool yes;
        int64_t integer;
        double real;
        struct {
            const char *bytes; /* ended by a NUL */
            size_t size;
        } text;
        const json_value *items; /* [count] */
        struct {
            const json_pair *pairs; /* [count] in the order of the text */
            const uint32_t *table;  /* open addressing: 1 + index into pairs, 0 = empty; NULL for
                                     * small  objects */
        } object;
    } as;
};

struct json_pair {
    const char *key; /* ended by a NUL */
    size_t key_size;
    json_value value;
};

/* The deepest nesting that is accepted, so that code which walks a value can recurse. */
enum { JSON_MAX_DEPTH = 256 };

/* The most values of a document, each of which takes about a hundred bytes. It is above the limit
 * of a streamed item, because that limit is only checked between two pieces of input. */
enum { JSON_MAX_VALUES = JSON_ITEM_VALUES + (1 << 20) };

typedef struct json_frame {
    size_t first; /* index of its first child in the stack of pairs */
    bool is_object;
} json_frame;

/* Turns events into one value. Children stay on a stack until their container ends, and are then
 * copied side by side into the arena. */
typedef struct json_builder {
    arena *memory;    /* borrowed */
    char *text_room;  /* where the next short text goes */
    size_t text_left; /* bytes left there */
    json_pair *pairs; /* the stack; on the heap, and kept between values */
    size_t n_pairs, capacity;
    size_t n_values; /* values built since the beginning or the last reset */
    json_frame frames[JSON_MAX_DEPTH];
    int depth;
    const char *key; /* of the next value; NULL in an array */
    size_t key_size;
} json_builder;

/* `memory` is borrowed until json_builder_done, and holds the values. */
void json_builder_init(json_builder *builder, arena *memory);
void json_builder_done(json_builder *builder);
/* Forgets everything that was built; the caller has reset the arena. */
void json_builder_reset(json_builder *builder);

/* The events, in the order of the text. Texts are copied. ST_BAD_INPUT without a place: a key
 * appears twice, the nesting is too deep, there are too many values; ST_NO_MEMORY. */
WARN_UNUSED status json_builder_key(json_builder *builder, const char *key, size_t size);
WARN_UNUSED status json_builder_text(json_builder *builder, const char *text, size_t size);
WARN_UNUSED status json_builder_scalar(json_builder *builder, json_value value);
WARN_UNUSED status json_builder_begin(json_builder *builder, bool is_object);
WARN_UNUSED status json_builder_end(json_builder *builder);
/* The value, if one is complete; else NULL. */
const json_value *json_builder_value(const json_builder *builder);

/* The index of the key among the members of an object that has a table; -1 if it is not there. */
int64_t json_table_find(const json_value *object, const char *key, size_t size);

#endif
