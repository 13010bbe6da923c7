/* SPDX-License-Identifier: Apache-2.0 */
/* json.h: reads and writes JSON.
 *
 * There are three parts. json_parse and json_load read a whole text into a tree of values, which
 * json_find, json_item and the json_want_ functions look into. json_stream_array reads the items of
 * one array of a file of any length, with the memory of one item. json_writer writes.
 *
 * yajl parses (json_parse.c is its only user); the tree is our own, in one arena for each document,
 * so that the i-th item is found at once. A value is borrowed from the document that owns it.
 * Errors name the source with line and offset, or the path of a member that is missing or has the
 * wrong type ("text_config.hidden_size"). */
#ifndef TESSERA_COMMON_JSON_H
#define TESSERA_COMMON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct json_value json_value; /* a value in a document, or the document itself */

typedef enum json_type {
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,
    JSON_REAL,
    JSON_TEXT,
    JSON_ARRAY,
    JSON_OBJECT,
} json_type;

/* Parses `size` bytes into a document, which the caller frees. Errors name `source`. Refused with
 * ST_BAD_INPUT: duplicate keys, bytes after the value, invalid UTF-8, half of a surrogate pair
 * (\ud83d alone), nesting deeper than 256, more than nine million values, numbers of more than 511
 * digits. An integer that does not fit into 64 bits becomes a real. A document never changes, so
 * threads can share it. */
WARN_UNUSED status json_parse(const char *text, size_t size, const char *source, json_value **out);
/* The same for a file. ST_NO_INPUT if it does not exist, ST_IO if it cannot be read. */
WARN_UNUSED status json_load(const char *path, json_value **out);
/* Frees a document (never a value inside of one) and sets the pointer to NULL; accepts NULL. */
void json_free(json_value **document);

json_type json_typeof(const json_value *value);
/* Words for messages: "an integer", "an object". */
const char *json_type_name(json_type type);

/* The member `key` of an object; NULL if there is none, or if value is NULL or not an object. */
const json_value *json_find(const json_value *value, const char *key);
/* The same, but NULL also for a member that is null: exports of tables (Arrow, pandas) write null
 * for the columns that a record lacks. */
const json_value *json_given(const json_value *value, const char *key);
/* The number of items of an array or members of an object; 0 for NULL and other types. */
size_t json_count(const json_value *value);
/* The i-th item of an array; NULL if there is none. */
const json_value *json_item(const json_value *array, size_t index);
/* The i-th member of an object in the order of the text, and its key (out_key can be NULL); NULL if
 * there is none. */
const json_value *json_member(const json_value *object, size_t index, const char **out_key);

/* The value if it has this type, else `otherwise`; value can be NULL. */
int64_t json_int(const json_value *value, int64_t otherwise);
double json_real(const json_value *value, double otherwise); /* an integer counts as a real */
bool json_bool(const json_value *value, bool otherwise);
const char *json_text(const json_value *value, const char *otherwise); /* ended by a NUL */
size_t json_text_size(const json_value *value); /* bytes; a text can contain NUL characters */

/* Members that must exist and have this type, else ST_BAD_INPUT, which names the source, the key,
 * and the expected and found types. A key that is not a member itself can be a path with dots
 * ("text_config.hidden_size"). */
WARN_UNUSED status json_want_int(const json_value *object, const char *key, const char *source,
                                 int64_t *out);
WARN_UNUSED status json_want_real(const json_value *object, const char *key, const char *source,
                                  double *out);
WARN_UNUSED status json_want_bool(const json_value *object, const char *key, const char *source,
                                  bool *out);
WARN_UNUSED status json_want_text(const json_value *object, const char *key, const char *source,
                                  const char **out);
WARN_UNUSED status json_want_array(const json_value *object, const char *key, const char *source,
                                   const json_value **out);

/* The largest item of a streamed array, in bytes, and about the most values in it (each takes about
 * a hundred bytes of memory). A larger item is passed to `each` as NULL, with its place and length;
 * its content is not checked. Outside of the array, a text longer than this ends the reading with
 * ST_BAD_INPUT. */
enum { JSON_ITEM_BYTES = 64 << 20, JSON_ITEM_VALUES = 8 << 20 };

/* Where an item of a streamed array lies in the input. */
typedef struct json_place {
    int64_t offset; /* of its first byte; of a text, the offset after its last byte */
    int64_t bytes;  /* length of an object or array, or of an item that is too long; else 0 */
    int64_t line;   /* of its first byte, from 1 */
} json_place;
/* Called for each item, which is valid only during the call. A status other than ST_OK ends the
 * reading. */
typedef status (*json_each)(void *user, const json_value *item, const json_place *place);

/* Calls each(user, ...) for every item of the array that is the member `key` of the file's
 * top-level object, or of the array at the top level if key is NULL. Uses the memory of one item
 * and a buffer. without: a member of the items that the caller does not need (NULL: none); its
 * value is checked but not built, and null stands in its place, which saves most of the time if it
 * is large. Fails with the status that `each` returned, or with ST_BAD_INPUT if the file is not
 * JSON or has no such array; items before the fault have been passed on by then. */
WARN_UNUSED status json_stream_array(const char *path, const char *key, const char *without,
                                     json_each each, void *user);
/* The same from any input: `next` writes up to `size` bytes to `to`, and 0 at the end of the input.
 * Errors name `source`. */
typedef status (*json_next)(void *input, void *to, size_t size, size_t *out_n);
WARN_UNUSED status json_stream_from(const char *source, json_next next, void *input,
                                    const char *key, const char *without, json_each each,
                                    void *user);

/* Writes JSON into a buffer that grows. The writer puts the commas; the caller balances begin and
 * end. Bytes that are not UTF-8 become U+FFFD, characters that would control a terminal
 * (common/base/words.h) are escaped, and reals that are not finite become null. A lack of memory
 * is remembered and reported by json_writer_take, so the other calls cannot fail. */
typedef struct json_writer {
    char *text; /* heap, ended by a NUL */
    size_t size, capacity;
    bool need_comma, out_of_memory;
} json_writer;

void json_writer_init(json_writer *writer);
/* Frees the text; accepts NULL, and is harmless after json_writer_take. */
void json_writer_done(json_writer *writer);
void json_begin_object(json_writer *writer);
void json_end_object(json_writer *writer);
void json_begin_array(json_writer *writer);
void json_end_array(json_writer *writer);
void json_put_key(json_writer *writer, const char *key);
void json_put_text(json_writer *writer, const char *text, size_t size);
void json_put_cstr(json_writer *writer, const char *text);
void json_put_int(json_writer *writer, int64_t value);
void json_put_real(json_writer *writer,
                   double value); /* the shortest text that reads back the same */
void json_put_bool(json_writer *writer, bool value);
void json_put_null(json_writer *writer);
void json_put_value(json_writer *writer,
                    const json_value *value); /* a parsed value with all that is in it */
void json_put_raw(json_writer *writer, const char *json,
                  size_t size); /* a value that is JSON already */
/* The same as json_put_key followed by the value. */
void json_put_key_text(json_writer *writer, const char *key, const char *text, size_t size);
void json_put_key_cstr(json_writer *writer, const char *key, const char *text);
void json_put_key_int(json_writer *writer, const char *key, int64_t value);
void json_put_key_real(json_writer *writer, const char *key, double value);
void json_put_key_bool(json_writer *writer, const char *key, bool value);
void json_put_key_null(json_writer *writer, const char *key);
void json_put_key_value(json_writer *writer, const char *key, const json_value *value);
void json_put_key_raw(json_writer *writer, const char *key, const char *json, size_t size);
void json_begin_key_object(json_writer *writer, const char *key);
void json_begin_key_array(json_writer *writer, const char *key);
/* Gives the text to the caller, who frees it; out_size can be NULL. The writer is empty afterwards.
 * ST_NO_MEMORY if any call before lacked memory. */
WARN_UNUSED status json_writer_take(json_writer *writer, char **out_text, size_t *out_size);

#endif
