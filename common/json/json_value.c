/* SPDX-License-Identifier: Apache-2.0 */
/* json_value.c: looks into documents: members, items, and values with the type that is wanted. */
#include "common/json/json_tree.h"

#include <string.h>

json_type json_typeof(const json_value *value)
{
    return value->type;
}

const char *json_type_name(json_type type)
{
    switch (type) {
    case JSON_NULL:
        return "null";
    case JSON_BOOL:
        return "true or false";
    case JSON_INT:
        return "an integer";
    case JSON_REAL:
        return "a number that is not a 64-bit integer";
    case JSON_TEXT:
        return "a text";
    case JSON_ARRAY:
        return "an array";
    case JSON_OBJECT:
        return "an object";
    }
    return "unknown";
}

static const json_value *find_member(const json_value *value, const char *key, size_t size)
{
    if (!value || value->type != JSON_OBJECT)
        return NULL;
    if (value->as.object.table) {
        int64_t at = json_table_find(value, key, size);
        return at < 0 ? NULL : &value->as.object.pairs[at].value;
    }
    for (uint32_t i = 0; i < value->count; i++) {
        const json_pair *pair = &value->as.object.pairs[i];
        if (pair->key_size == size && memcmp(pair->key, key, size) == 0)
            return &pair->value;
    }
    return NULL;
}

const json_value *json_find(const json_value *value, const char *key)
{
    return find_member(value, key, strlen(key));
}

const json_value *json_given(const json_value *value, const char *key)
{
    const json_value *member = json_find(value, key);
    return member && member->type != JSON_NULL ? member : NULL;
}

size_t json_count(const json_value *value)
{
    return value && (value->type == JSON_ARRAY || value->type == JSON_OBJECT) ? value->count : 0;
}

const json_value *json_item(const json_value *array, size_t index)
{
    if (!array || array->type != JSON_ARRAY || index >= array->count)
        return NULL;
    return &array->as.items[index];
}

const json_value *json_member(const json_value *object, size_t index, const char **out_key)
{
    if (!object || object->type != JSON_OBJECT || index >= object->count)
        return NULL;
    if (out_key)
        *out_key = object->as.object.pairs[index].key;
    return &object->as.object.pairs[index].value;
}

int64_t json_int(const json_value *value, int64_t otherwise)
{
    return value && value->type == JSON_INT ? value->as.integer : otherwise;
}

double json_real(const json_value *value, double otherwise)
{
    if (value && value->type == JSON_INT)
        return (double)value->as.integer;
    return value && value->type == JSON_REAL ? value->as.real : otherwise;
}

bool json_bool(const json_value *value, bool otherwise)
{
    return value && value->type == JSON_BOOL ? value->as.yes : otherwise;
}

const char *json_text(const json_value *value, const char *otherwise)
{
    return value && value->type == JSON_TEXT ? value->as.text.bytes : otherwise;
}

size_t json_text_size(const json_value *value)
{
    return value && value->type == JSON_TEXT ? value->as.text.size : 0;
}

/* The member of this name or, if there is none, the one at the end of a path with dots. */
static const json_value *find_path(const json_value *object, const char *key)
{
    const json_value *value = json_find(object, key);
    const char *dot = strchr(key, '.');
    if (value || !dot)
        return value;
    value = find_member(object, key, (size_t)(dot - key));
    return value ? find_path(value, dot + 1) : NULL;
}

static status want(const json_value *object, const char *key, const char *source, json_type type,
                   const json_value **out)
{
    const json_value *value = find_path(object, key);
    if (!value && object && object->type != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, source, "expected an object with \"%s\", found %s", key,
                       json_type_name(object->type));
    if (!value)
        return FAIL_IN(ST_BAD_INPUT, source, "\"%s\" is missing; expected %s", key,
                       json_type_name(type));
    bool fits = value->type == type || (type == JSON_REAL && value->type == JSON_INT);
    if (!fits)
        return FAIL_IN(ST_BAD_INPUT, source, "\"%s\": expected %s, found %s", key,
                       type == JSON_REAL ? "a number" : json_type_name(type),
                       json_type_name(value->type));
    *out = value;
    return ST_OK;
}

status json_want_int(const json_value *object, const char *key, const char *source, int64_t *out)
{
    const json_value *value;
    TRY(want(object, key, source, JSON_INT, &value));
    *out = value->as.integer;
    return ST_OK;
}

status json_want_real(const json_value *object, const char *key, const char *source, double *out)
{
    const json_value *value;
    TRY(want(object, key, source, JSON_REAL, &value));
    *out = json_real(value, 0);
    return ST_OK;
}

status json_want_bool(const json_value *object, const char *key, const char *source, bool *out)
{
    const json_value *value;
    TRY(want(object, key, source, JSON_BOOL, &value));
    *out = value->as.yes;
    return ST_OK;
}

status json_want_text(const json_value *object, const char *key, const char *source,
                      const char **out)
{
    const json_value *value;
    TRY(want(object, key, source, JSON_TEXT, &value));
    *out = value->as.text.bytes;
    return ST_OK;
}

status json_want_array(const json_value *object, const char *key, const char *source,
                       const json_value **out)
{
    return want(object, key, source, JSON_ARRAY, out);
}
