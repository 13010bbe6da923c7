/* json_value.c: looks into documents: members, items, and values with the type that is wanted. */
#include "common/json/json_tree.h"

#include <string.h>

json_type json_typeof(const json_value *v)
{
    return v->type;
}

const char *json_type_name(json_type t)
{
    switch (t) {
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

static const json_value *find_member(const json_value *v, const char *key, size_t size)
{
    if (!v || v->type != JSON_OBJECT)
        return NULL;
    if (v->as.object.table) {
        int64_t at = json_table_find(v, key, size);
        return at < 0 ? NULL : &v->as.object.pairs[at].value;
    }
    for (uint32_t i = 0; i < v->count; i++) {
        const json_pair *pair = &v->as.object.pairs[i];
        if (pair->key_size == size && memcmp(pair->key, key, size) == 0)
            return &pair->value;
    }
    return NULL;
}

const json_value *json_find(const json_value *v, const char *key)
{
    return find_member(v, key, strlen(key));
}

const json_value *json_given(const json_value *v, const char *key)
{
    const json_value *x = json_find(v, key);
    return x && x->type != JSON_NULL ? x : NULL;
}

size_t json_count(const json_value *v)
{
    return v && (v->type == JSON_ARRAY || v->type == JSON_OBJECT) ? v->count : 0;
}

const json_value *json_item(const json_value *array, size_t i)
{
    if (!array || array->type != JSON_ARRAY || i >= array->count)
        return NULL;
    return &array->as.items[i];
}

const json_value *json_member(const json_value *object, size_t i, const char **out_key)
{
    if (!object || object->type != JSON_OBJECT || i >= object->count)
        return NULL;
    if (out_key)
        *out_key = object->as.object.pairs[i].key;
    return &object->as.object.pairs[i].value;
}

int64_t json_int(const json_value *v, int64_t otherwise)
{
    return v && v->type == JSON_INT ? v->as.integer : otherwise;
}

double json_real(const json_value *v, double otherwise)
{
    if (v && v->type == JSON_INT)
        return (double)v->as.integer;
    return v && v->type == JSON_REAL ? v->as.real : otherwise;
}

bool json_bool(const json_value *v, bool otherwise)
{
    return v && v->type == JSON_BOOL ? v->as.yes : otherwise;
}

const char *json_text(const json_value *v, const char *otherwise)
{
    return v && v->type == JSON_TEXT ? v->as.text.bytes : otherwise;
}

size_t json_text_size(const json_value *v)
{
    return v && v->type == JSON_TEXT ? v->as.text.size : 0;
}

/* The member of this name or, if there is none, the one at the end of a path with dots. */
static const json_value *find_path(const json_value *object, const char *key)
{
    const json_value *v = json_find(object, key);
    const char *dot = strchr(key, '.');
    if (v || !dot)
        return v;
    v = find_member(object, key, (size_t)(dot - key));
    return v ? find_path(v, dot + 1) : NULL;
}

static status want(const json_value *object, const char *key, const char *source, json_type type,
                   const json_value **out)
{
    const json_value *v = find_path(object, key);
    if (!v && object && object->type != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, source, "expected an object with \"%s\", found %s", key,
                       json_type_name(object->type));
    if (!v)
        return FAIL_IN(ST_BAD_INPUT, source, "\"%s\" is missing; expected %s", key,
                       json_type_name(type));
    bool fits = v->type == type || (type == JSON_REAL && v->type == JSON_INT);
    if (!fits)
        return FAIL_IN(ST_BAD_INPUT, source, "\"%s\": expected %s, found %s", key,
                       type == JSON_REAL ? "a number" : json_type_name(type),
                       json_type_name(v->type));
    *out = v;
    return ST_OK;
}

status json_want_int(const json_value *object, const char *key, const char *source, int64_t *out)
{
    const json_value *v;
    TRY(want(object, key, source, JSON_INT, &v));
    *out = v->as.integer;
    return ST_OK;
}

status json_want_real(const json_value *object, const char *key, const char *source, double *out)
{
    const json_value *v;
    TRY(want(object, key, source, JSON_REAL, &v));
    *out = json_real(v, 0);
    return ST_OK;
}

status json_want_bool(const json_value *object, const char *key, const char *source, bool *out)
{
    const json_value *v;
    TRY(want(object, key, source, JSON_BOOL, &v));
    *out = v->as.yes;
    return ST_OK;
}

status json_want_text(const json_value *object, const char *key, const char *source,
                      const char **out)
{
    const json_value *v;
    TRY(want(object, key, source, JSON_TEXT, &v));
    *out = v->as.text.bytes;
    return ST_OK;
}

status json_want_array(const json_value *object, const char *key, const char *source,
                       const json_value **out)
{
    return want(object, key, source, JSON_ARRAY, out);
}
