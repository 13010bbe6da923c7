/* SPDX-License-Identifier: Apache-2.0 */
/* serve_leases.c: checks the leases of fuzz_serve.c. */
#include "tests/fuzz/serve_leases.h"

#include <string.h>

#include "common/json/json.h"
#include "tests/fuzz/fuzz.h"

static void check_docs(const json_value *docs)
{
    int64_t left = 0, before = 0; /* branches that are still to come; tokens of their prefix */
    for (size_t i = 0; i < json_count(docs); i++) {
        const json_value *doc = json_item(docs, i);
        const int64_t branches = json_int(json_find(doc, "prefix"), 0);
        FUZZ_HOLDS((left > 0) == (json_find(doc, "before") != NULL));
        if (left > 0) {
            left--;
            FUZZ_HOLDS(json_int(json_find(doc, "before"), 0) == before && branches == 0 &&
                       !json_find(doc, "grids"));
            continue;
        }
        FUZZ_HOLDS(json_find(doc, "grids") &&
                   (json_int(json_find(doc, "part"), 0) == -1) == (branches > 0) && branches != 1);
        left = branches;
        before = json_int(json_find(doc, "tokens"), 0);
    }
    FUZZ_HOLDS(left == 0);
}

static void check_texts(const json_value *samples)
{
    for (size_t i = 0; i < json_count(samples); i++) {
        const json_value *own = json_item(samples, i), *after = json_find(own, "after");
        if (!after)
            continue;
        const json_value *other = after;
        if (json_typeof(after) != JSON_OBJECT) {
            const int64_t place = json_int(after, -1);
            FUZZ_HOLDS(place >= 0 && place < (int64_t)i);
            other = json_item(samples, (size_t)place);
        }
        FUZZ_HOLDS(json_find(other, "turns") &&
                   json_int(json_find(other, "id"), -1) < json_int(json_find(own, "id"), -1));
    }
}

void check_lease_text(span text)
{
    json_value *value = NULL;
    FUZZ_HOLDS(json_parse((const char *)text.data, text.size, "a lease", &value) == ST_OK);
    check_docs(json_find(value, "docs"));
    if (strcmp(json_text(json_find(value, "kind"), ""), "texts") == 0)
        check_texts(json_find(value, "samples"));
    json_free(&value);
}

void check_lease_items(const lease *leased)
{
    int64_t left = 0;
    for (int64_t k = 0; k < leased->n_items; k++) {
        const int64_t branches = leased->branches ? leased->branches[k] : 0;
        FUZZ_HOLDS(branches >= 0 && (leased->item[k] < 0 ? left == 0 : branches == 0));
        left = leased->item[k] < 0 ? branches : left > 0 ? left - 1 : 0;
    }
    FUZZ_HOLDS(left == 0);
}
