/* fingerprints.c: writes and reads fingerprints as JSON, and compares them. */
#include "prepd/agreed/fingerprints.h"

#include <string.h>

const char *const print_names[N_PRINTS] = {"images", "videos", "tokens"};

void fingerprints_set(fingerprints *f, print_kind kind, hash128 value)
{
    hash_print(value, f->of[kind]);
}

void fingerprints_put(const fingerprints *f, json_writer *w)
{
    json_begin_key_object(w, "fingerprints");
    for (int k = 0; k < N_PRINTS; k++) {
        if (!f->of[k][0])
            continue;
        json_put_key_cstr(w, print_names[k], f->of[k]);
    }
    json_end_object(w);
}

status fingerprints_read(const json_value *object, const char *source, fingerprints *out)
{
    const json_value *list = json_find(object, "fingerprints");
    fingerprints f = {0};
    for (int k = 0; k < N_PRINTS; k++) {
        const json_value *v = json_find(list, print_names[k]);
        hash128 value;
        if (!v || json_typeof(v) == JSON_NULL)
            continue;
        if (!hash_parse(json_text(v, ""), &value))
            return FAIL_IN(ST_PROTOCOL, source, "fingerprints.%s is not 32 hex digits",
                           print_names[k]);
        fingerprints_set(&f, (print_kind)k, value);
    }
    *out = f;
    return ST_OK;
}

print_kind fingerprints_other(const fingerprints *a, const fingerprints *b)
{
    int k = 0;
    while (k < N_PRINTS && (!a->of[k][0] || !b->of[k][0] || strcmp(a->of[k], b->of[k]) == 0))
        k++;
    return (print_kind)k;
}
