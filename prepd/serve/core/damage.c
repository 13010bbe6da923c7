/* damage.c: pictures that decode, but with a warning that their file is damaged (data.damaged
 * accept). They are used as they decode. Here they are counted, and their names are kept for `prepd
 * status` and `prepd check`. */
#include <stdio.h>
#include <sys/types.h>

#include "prepd/serve/core/dispatch_state.h"

enum { WARNING_BYTES = 240 };
static const int64_t TOLD = 10; /* logged for a section; a data set may have thousands */

/* Records a warning about picture `index` of a sample. */
static status note_damage(dispatch *state, source *section, int64_t id, int64_t index,
                          const char *warning)
{
    sample smp;
    bool fresh = false;
    char text[WARNING_BYTES];
    arena_reset(&state->scratch);
    TRY(section->data->adapter->outline(section->data, id, &state->scratch, &smp));
    if (index < 0 || index >= smp.n_images)
        return FAIL(ST_PROTOCOL,
                    "the worker reported damage of picture %lld of a sample that has %d pictures",
                    (long long)index, (int)smp.n_images);
    snprintf(text, sizeof(text), "%s", warning);
    if (section->damaged.n == BAD_SAMPLES_MOST)
        return ST_OK; /* further ones are neither named nor counted */
    if (bad_samples_add(&section->damaged, smp.images[index], text, &fresh) != ST_OK) {
        dispatch_fail(state, ST_NO_MEMORY); /* the daemon's own failure, not the worker's */
        return ST_OK;
    }
    if (fresh && section->damaged.n <= TOLD)
        outside_warn(&state->outside,
                     "picture damaged, used as it decodes section=%s file=\"%s\" warning=\"%s\"%s",
                     section->name,
                     section->data->adapter->image_path(section->data, smp.images[index]), text,
                     section->damaged.n == TOLD ? "; further ones are counted (prepd status)" : "");
    return ST_OK;
}

status damage_heard(dispatch *state, const lease *leased, const json_value *list, const char *name)
{
    if (!leased->owner || leased->kind != LEASE_ROW)
        return ST_OK;
    for (size_t i = 0; i < json_count(list); i++) {
        const json_value *said = json_item(list, i);
        const char *warning;
        int64_t id, k;
        TRY(json_want_int(said, "id", name, &id));
        TRY(json_want_int(said, "image", name, &k));
        TRY(json_want_text(said, "warning", name, &warning));
        if (!lease_has(leased, id))
            return FAIL_IN(ST_PROTOCOL, name,
                           "the worker reported damage in sample %lld, which is not in its lease",
                           (long long)id);
        TRY(note_damage(state, lease_source(leased), id, k, warning));
    }
    return ST_OK;
}

int64_t damage_put(const source *section, int64_t from, int64_t most, json_writer *out)
{
    int64_t i = from < 0 ? 0 : from;
    json_begin_array(out);
    for (; i < section->damaged.n && most-- > 0; i++) {
        json_begin_object(out);
        json_put_key_cstr(
            out, "file", section->data->adapter->image_path(section->data, section->damaged.id[i]));
        json_put_key_cstr(out, "warning", section->damaged.cause[i]);
        json_end_object(out);
    }
    json_end_array(out);
    return i;
}
