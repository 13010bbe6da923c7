/* json.h: the only door to JSON. yajl parses; documents are our own trees in one arena, built by
 * the same events whether a text is parsed whole or a file of hundreds of megabytes item by item.
 * (jansson was passed over: it finds the i-th member only by walking, and exports a json_real.)
 *
 * Values are borrowed from the document that owns them. Errors name the source, line and offset,
 * or the path of the member that is missing or of another type ("text_config.hidden_size"). */
#ifndef TESSERA_COMMON_JSON_H
#define TESSERA_COMMON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct json_value json_value; /* opaque; borrowed */

typedef enum json_type {
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,
    JSON_REAL,
    JSON_TEXT,
    JSON_ARRAY,
    JSON_OBJECT,
} json_type;

/* source names the input in errors. Refuses duplicate keys, trailing bytes, invalid UTF-8, half a
 * surrogate pair (\ud83d alone), nesting beyond 256, more than nine million values. Integers beyond
 * 64 bits become reals. A document is read-only, so threads may share it. */
WARN_UNUSED status json_parse(const char *text, size_t size, const char *source, json_value **out);
WARN_UNUSED status json_load(const char *path, json_value **out);
void json_free(json_value **v);

json_type json_typeof(const json_value *v);
const char *json_type_name(json_type t);

/* Members and items; NULL if absent (json_find also if v is no object). */
const json_value *json_find(const json_value *v, const char *key);
/* The same, where null stands for a member that is not there: exports of tables (Arrow, pandas)
 * fill the columns that a record lacks so. */
const json_value *json_given(const json_value *v, const char *key);
size_t json_count(const json_value *v); /* items of an array, members of an object, else 0 */
const json_value *json_item(const json_value *array, size_t i);
/* i-th member of an object in file order. */
const json_value *json_member(const json_value *object, size_t i, const char **out_key);

/* The value, or a default for another type (the caller has checked the type where it matters). */
int64_t json_int(const json_value *v, int64_t otherwise);
double json_real(const json_value *v, double otherwise); /* ints too */
bool json_bool(const json_value *v, bool otherwise);
const char *json_text(const json_value *v, const char *otherwise);
size_t json_text_size(const json_value *v); /* bytes; texts may hold NUL */

/* Typed members that must be there; the failure names source, key, wanted and found type. A key
 * that is no member itself may be a dotted path ("text_config.hidden_size"). */
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

/* Streaming: calls `each` for every item of the array member `key` of the top-level object of the
 * file (key NULL: the top level is the array), in the memory of one item and a read buffer; item is
 * valid during the call. without: a member of the items that is not wanted (NULL: none); its value
 * is read as JSON, but null stands in its place, which saves most of the time where it is large. A
 * status other than ST_OK from `each` ends the reading and is returned as
 * it is. Fails if the file is no JSON, or has no such array; items before the bad place have been
 * handed out by then. */
/* An item may have so many bytes, and about so many values (each costs about a hundred bytes). A
 * longer one is handed out as NULL with its place and `bytes`; it is not kept, and what is in it is
 * not checked. A text longer than an item may be, outside of the array, ends the reading:
 * ST_BAD_INPUT.
 */
enum { JSON_ITEM_BYTES = 64 << 20, JSON_ITEM_VALUES = 8 << 20 };

typedef struct json_place {
    int64_t offset; /* of the item's first byte in the file (for a text: its end) */
    int64_t bytes;  /* of an object or array, or of what is too long; 0 for others */
    int64_t line;   /* of the first byte, from 1 */
} json_place;
typedef status (*json_each)(void *user, const json_value *item, const json_place *at);
WARN_UNUSED status json_stream_array(const char *path, const char *key, const char *without,
                                     json_each each, void *user);
/* The same from anything that can be read: next gives up to size bytes, 0 at the end; source names
 * it in errors. */
typedef status (*json_next)(void *input, void *to, size_t size, size_t *out_n);
WARN_UNUSED status json_stream_from(const char *source, json_next next, void *input,
                                    const char *key, const char *without, json_each each,
                                    void *user);

/* Writing: text is appended to a growing buffer; commas are put by the writer. Texts that are not
 * UTF-8 get U+FFFD in place of the bad bytes; characters that would steer a terminal
 * (common/base/visible.h) are escaped; reals that are not finite become null. */
typedef struct json_writer {
    char *text; /* terminated; heap */
    size_t size, capacity;
    bool need_comma, out_of_memory;
} json_writer;

void json_writer_init(json_writer *w);
void json_writer_done(json_writer *w);
void json_begin_object(json_writer *w);
void json_end_object(json_writer *w);
void json_begin_array(json_writer *w);
void json_end_array(json_writer *w);
void json_put_key(json_writer *w, const char *key);
void json_put_text(json_writer *w, const char *s, size_t size);
void json_put_cstr(json_writer *w, const char *s);
void json_put_int(json_writer *w, int64_t v);
void json_put_real(json_writer *w, double v); /* shortest text that reads back the same */
void json_put_bool(json_writer *w, bool v);
void json_put_null(json_writer *w);
void json_put_value(json_writer *w, const json_value *v);         /* a parsed one, whole */
void json_put_raw(json_writer *w, const char *json, size_t size); /* a finished value */
/* A member of an object: the key and its value. */
void json_put_key_text(json_writer *w, const char *key, const char *s, size_t size);
void json_put_key_cstr(json_writer *w, const char *key, const char *s);
void json_put_key_int(json_writer *w, const char *key, int64_t v);
void json_put_key_real(json_writer *w, const char *key, double v);
void json_put_key_bool(json_writer *w, const char *key, bool v);
void json_put_key_null(json_writer *w, const char *key);
void json_put_key_value(json_writer *w, const char *key, const json_value *v);
void json_put_key_raw(json_writer *w, const char *key, const char *json, size_t size);
void json_begin_key_object(json_writer *w, const char *key);
void json_begin_key_array(json_writer *w, const char *key);
/* ST_NO_MEMORY if any append failed; otherwise hands the text over (heap, terminated). */
WARN_UNUSED status json_writer_take(json_writer *w, char **out_text, size_t *out_size);

#endif
