/* tokenizer_members.c: looks up members of tokenizer.json by key and type. Errors name the path of
 * the member. */
#include "common/tokenizer/tokenizer_loading.h"

status loading_optional(const loading *l, const json_value *object, const char *at, const char *key,
                        json_type type, const json_value **out)
{
    const json_value *v = json_find(object, key);
    *out = NULL;
    if (!v || json_typeof(v) == JSON_NULL)
        return ST_OK;
    if (json_typeof(v) != type)
        return FAIL_IN(ST_BAD_INPUT, l->file, "%s%s%s is %s, expected %s", at, *at ? "." : "", key,
                       json_type_name(json_typeof(v)), json_type_name(type));
    *out = v;
    return ST_OK;
}

status loading_required(const loading *l, const json_value *object, const char *at, const char *key,
                        json_type type, const json_value **out)
{
    TRY(loading_optional(l, object, at, key, type, out));
    if (!*out)
        return FAIL_IN(ST_BAD_INPUT, l->file, "%s%s%s is missing, expected %s", at, *at ? "." : "",
                       key, json_type_name(type));
    return ST_OK;
}

status loading_must_be_off(const loading *l, const json_value *object, const char *at,
                           const char *key)
{
    const json_value *v = json_find(object, key);
    if (!v || json_typeof(v) == JSON_NULL)
        return ST_OK;
    if (json_typeof(v) == JSON_BOOL && !json_bool(v, true))
        return ST_OK;
    if (json_typeof(v) == JSON_TEXT && !json_text_size(v))
        return ST_OK;
    return FAIL_IN(ST_BAD_INPUT, l->file, "%s.%s is set, which is not implemented", at, key);
}
