/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprints.c: writes and reads fingerprints as JSON, and compares them. */
#include "prepd/agreed/fingerprints.h"

#include <string.h>

const char *const print_names[N_PRINTS] = {"images", "videos",  "tokens",   "jpeg",
                                           "png",    "webp",    "resizing", "frames",
                                           "texts",  "packing", "clips"};

void fingerprints_set(fingerprints *prints, print_kind kind, hash128 value)
{
    hash_print(value, prints->of[kind]);
}

void fingerprints_put(const fingerprints *prints, json_writer *writer)
{
    json_begin_key_object(writer, "fingerprints");
    for (int k = 0; k < N_PRINTS; k++) {
        if (!prints->of[k][0])
            continue;
        json_put_key_cstr(writer, print_names[k], prints->of[k]);
    }
    json_end_object(writer);
}

status fingerprints_read(const json_value *object, const char *source, fingerprints *out)
{
    const json_value *list = json_find(object, "fingerprints");
    fingerprints prints = {0};
    for (int k = 0; k < N_PRINTS; k++) {
        const json_value *member = json_find(list, print_names[k]);
        hash128 value;
        if (!member || json_typeof(member) == JSON_NULL)
            continue;
        if (!hash_parse(json_text(member, ""), &value))
            return FAIL_IN(ST_PROTOCOL, source, "fingerprints.%s is not 32 hex digits",
                           print_names[k]);
        fingerprints_set(&prints, (print_kind)k, value);
    }
    *out = prints;
    return ST_OK;
}

print_kind fingerprints_other(const fingerprints *ours, const fingerprints *theirs)
{
    int k = 0;
    while (k < N_PRINTS &&
           (!ours->of[k][0] || !theirs->of[k][0] || strcmp(ours->of[k], theirs->of[k]) == 0))
        k++;
    return (print_kind)k;
}
