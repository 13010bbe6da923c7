/* tokenizer_members.c: looks up members of tokenizer.json by key and type. Errors name the path of
 * the member. */
#include "common/tokenizer/tokenizer_loading.h"

status loading_optional(const loading *state, const json_value *object, const char *at,
                        const char *key, json_type type, const json_value **out)
{
    const json_value *value = json_find(object, key);
    *out = NULL;
    if (!value || json_typeof(value) == JSON_NULL)
        return ST_OK;
    if (json_typeof(value) != type)
        return FAIL_IN(ST_BAD_INPUT, state->file, "%s%s%s is %s, expected %s", at, *at ? "." : "",
                       key, json_type_name(json_typeof(value)), json_type_name(type));
    *out = value;
    return ST_OK;
}

status loading_required(const loading *state, const json_value *object, const char *at,
                        const char *key, json_type type, const json_value **out)
{
    TRY(loading_optional(state, object, at, key, type, out));
    if (!*out)
        return FAIL_IN(ST_BAD_INPUT, state->file, "%s%s%s is missing, expected %s", at,
                       *at ? "." : "", key, json_type_name(type));
    return ST_OK;
}

status loading_must_be_off(const loading *state, const json_value *object, const char *at,
                           const char *key)
{
    const json_value *value = json_find(object, key);
    if (!value || json_typeof(value) == JSON_NULL)
        return ST_OK;
    if (json_typeof(value) == JSON_BOOL && !json_bool(value, true))
        return ST_OK;
    if (json_typeof(value) == JSON_TEXT && !json_text_size(value))
        return ST_OK;
    return FAIL_IN(ST_BAD_INPUT, state->file, "%s.%s is set, which is not implemented", at, key);
}
