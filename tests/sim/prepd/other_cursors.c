/* SPDX-License-Identifier: Apache-2.0 */
/* other_cursors.c: a rank comes with a cursor of other data, or of another mixture of the same
 * data. It must be refused, and told what differs. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/prepd/invariants.h"
#include "tests/sim/prepd/jobs.h"

static const char OTHER_INDEX[] = "0123456789abcdef0123456789abcdef";

/* Writes the weights, that of the first source being another. */
static void put_weights(const json_value *weights, json_writer *writer)
{
    json_begin_key_object(writer, "weights");
    for (size_t i = 0; i < json_count(weights); i++) {
        const char *name;
        const json_value *weight = json_member(weights, i, &name);
        json_put_key_real(writer, name, json_real(weight, 0) + (i == 0));
    }
    json_end_object(writer);
}

static bool is_key(const char *key, const char *other)
{
    return strcmp(key, other) == 0;
}

char *other_cursor(const char *cursor, cursor_kind *inout_kind)
{
    json_value *said;
    json_writer writer;
    char *text;
    if (json_parse(cursor, strlen(cursor), "cursor", &said) != ST_OK)
        abort();
    const json_value *weights = json_find(said, "weights");
    if (!weights)
        *inout_kind = CURSOR_OTHER_DATA;
    json_writer_init(&writer);
    json_begin_object(&writer);
    for (size_t i = 0; i < json_count(said); i++) {
        const char *key;
        const json_value *value = json_member(said, i, &key);
        if (is_key(key, "index"))
            json_put_key_cstr(&writer, key, OTHER_INDEX);
        else if (is_key(key, "contents") && *inout_kind == CURSOR_OTHER_DATA)
            json_put_key_cstr(&writer, key, OTHER_INDEX);
        else if (value == weights && *inout_kind == CURSOR_OTHER_WEIGHTS)
            put_weights(weights, &writer);
        else
            json_put_key_value(&writer, key, value);
    }
    json_end_object(&writer);
    if (json_writer_take(&writer, &text, NULL) != ST_OK)
        abort();
    json_writer_done(&writer);
    json_free(&said);
    return text;
}

bool check_other_cursor(simulation *sim, int who, status why)
{
    const cursor_kind brings = sim->rank[who]->brings;
    if (brings != CURSOR_OTHER_WEIGHTS && brings != CURSOR_OTHER_DATA)
        return false;
    if (why != ST_CONFIG)
        return false; /* nobody has looked at it */
    if (check_other_data(sim, who, why))
        return true; /* the data are other ones as well, which comes first */
    const char *named = brings == CURSOR_OTHER_WEIGHTS ? "has weight " : OTHER_INDEX;
    sim->stats->other_cursors[brings == CURSOR_OTHER_WEIGHTS]++;
    if (!strstr(status_text(), named))
        sim_break(sim, INV_CURSORS, "rank %d brings a cursor of %s and is told: %s", who,
                  brings == CURSOR_OTHER_WEIGHTS ? "other weights" : "other data", status_text());
    return true;
}
