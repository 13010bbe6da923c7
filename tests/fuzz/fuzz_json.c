/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_json.c: any bytes as JSON. They must be refused, or give a document that is the same when it
 * is written and read again. */
#include <string.h>

#include "common/json/json.h"
#include "tests/fuzz/fuzz.h"

static char *text_of(const json_value *value)
{
    json_writer writer;
    char *text = NULL;
    json_writer_init(&writer);
    json_put_value(&writer, value);
    FUZZ_HOLDS(json_writer_take(&writer, &text, NULL) == ST_OK);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_value *value = NULL, *again = NULL;
    if (json_parse((const char *)data, size, "fuzz", &value) != ST_OK)
        return 0;
    if (!memmem(data, size, "\\u0000", 6)) { /* a key is cut at NUL, and may then equal another */
        char *first = text_of(value);
        FUZZ_HOLDS(json_parse(first, strlen(first), "rewritten", &again) == ST_OK);
        char *second = text_of(again);
        FUZZ_HOLDS(strcmp(first, second) == 0);
        free(first);
        free(second);
    }
    json_free(&again);
    json_free(&value);
    return 0;
}
