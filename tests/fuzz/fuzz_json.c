/* Any bytes: refused, or a document that, written out, reads back as itself. */
#include <string.h>

#include "common/json.h"
#include "tests/fuzz/fuzz.h"

static void rewrite(json_writer *w, const json_value *v)
{
    const char *key;
    switch (json_typeof(v)) {
    case JSON_NULL:
        json_put_null(w);
        break;
    case JSON_BOOL:
        json_put_bool(w, json_bool(v, false));
        break;
    case JSON_INT:
        json_put_int(w, json_int(v, 0));
        break;
    case JSON_REAL:
        json_put_real(w, json_real(v, 0));
        break;
    case JSON_TEXT:
        json_put_text(w, json_text(v, ""), json_text_size(v));
        break;
    case JSON_ARRAY:
        json_begin_array(w);
        for (size_t i = 0; i < json_count(v); i++)
            rewrite(w, json_item(v, i));
        json_end_array(w);
        break;
    case JSON_OBJECT:
        json_begin_object(w);
        for (size_t i = 0; i < json_count(v); i++) {
            const json_value *member = json_member(v, i, &key);
            json_put_key(w, key);
            rewrite(w, member);
        }
        json_end_object(w);
        break;
    }
}

static char *text_of(const json_value *v)
{
    json_writer w;
    char *text = NULL;
    json_writer_init(&w);
    rewrite(&w, v);
    FUZZ_HOLDS(json_writer_take(&w, &text, NULL) == ST_OK);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_value *v = NULL, *again = NULL;
    if (json_parse((const char *)data, size, "fuzz", &v) != ST_OK)
        return 0;
    if (!memmem(data, size, "\\u0000", 6)) { /* a key cut at NUL may meet another */
        char *first = text_of(v);
        FUZZ_HOLDS(json_parse(first, strlen(first), "rewritten", &again) == ST_OK);
        char *second = text_of(again);
        FUZZ_HOLDS(strcmp(first, second) == 0);
        free(first);
        free(second);
    }
    json_free(&again);
    json_free(&v);
    return 0;
}
