/* lease_read.c: reads the members of a lease, above all the turns of a sample. */
#include "prepd/worker/lease_read.h"

#include <string.h>

static const char SOURCE[] = "lease";

const conf *lease_conf(const workshop *shop, const json_value *lease)
{
    return strcmp(json_text(json_find(lease, "stream"), ""), "eval") == 0 ? &shop->eval
                                                                          : &shop->train;
}

const char *lease_cause(const char *root, const char *text)
{
    size_t length = strlen(root);
    return length && strncmp(text, root, length) == 0 && text[length] == '/' ? text + length + 1
                                                                             : text;
}

bool lease_must_end(const workshop *shop, status st)
{
    return st == ST_PROTOCOL || st == ST_NO_MEMORY || (st == ST_IO && !shop->options->data_root);
}

bool lease_is_missing(const workshop *shop, status st)
{
    return st == ST_NO_INPUT || (st == ST_IO && shop->options->data_root);
}

status lease_root(const workshop *shop, const json_value *lease, const char **out)
{
    if (shop->options->data_root) {
        *out = shop->options->data_root;
        return ST_OK;
    }
    return json_want_text(lease, "root", SOURCE, out);
}

static status read_weights(const json_value *value, arena *memory, turn *said)
{
    float *weights;
    if (!value)
        return ST_OK;
    if ((int64_t)json_count(value) != said->n_parts)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there are %zu weights for %d parts", json_count(value),
                       (int)said->n_parts);
    TRY(arena_calloc(memory, json_count(value) + 1, sizeof *weights, (void **)&weights));
    for (int32_t i = 0; i < said->n_parts; i++) {
        const double weight = json_real(json_item(value, (size_t)i), -1);
        if (!(weight >= 0 && weight <= 1e6))
            return FAIL_IN(ST_PROTOCOL, SOURCE, "the weight %g is not within 0 to 1e6", weight);
        weights[i] = (float)weight;
    }
    said->weights = weights;
    return ST_OK;
}

static status read_turn(const json_value *value, int32_t n_images, arena *memory, turn *out)
{
    int64_t role;
    const json_value *parts;
    TRY(json_want_int(value, "role", SOURCE, &role));
    TRY(json_want_array(value, "parts", SOURCE, &parts));
    if (role < ROLE_SYSTEM || role > ROLE_ASSISTANT)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there is no role %lld", (long long)role);
    *out = (turn){.role = (int)role,
                  .trained = json_bool(json_find(value, "trained"), false),
                  .n_parts = (int32_t)json_count(parts)};
    TRY(arena_calloc(memory, json_count(parts) + 1, sizeof(part), (void **)&out->parts));
    for (int32_t i = 0; i < out->n_parts; i++) {
        const json_value *item = json_item(parts, (size_t)i);
        if (json_typeof(item) == JSON_TEXT) {
            char *text;
            TRY(arena_strndup(memory, json_text(item, ""), json_text_size(item), &text));
            out->parts[i] = (part){text, (int64_t)json_text_size(item), -1};
            continue;
        }
        int64_t number = json_int(item, -1);
        if (number < 0 || number >= n_images)
            return FAIL_IN(ST_PROTOCOL, SOURCE, "there is no image %lld in a sample with %d images",
                           (long long)number, (int)n_images);
        out->parts[i] = (part){.image = (int32_t)number};
    }
    return read_weights(json_find(value, "weights"), memory, out);
}

status lease_read_sample(const json_value *object, int32_t n_images, arena *memory, sample *out)
{
    const json_value *turns;
    int64_t id;
    TRY(json_want_int(object, "id", SOURCE, &id));
    TRY(json_want_array(object, "turns", SOURCE, &turns));
    *out = (sample){.id = (uint64_t)id,
                    .name = "",
                    .plain = json_bool(json_find(object, "plain"), false),
                    .n_turns = (int32_t)json_count(turns),
                    .n_images = n_images};
    TRY(arena_calloc(memory, json_count(turns) + 1, sizeof(turn), (void **)&out->turns));
    TRY(arena_calloc(memory, (size_t)n_images + 1, sizeof(*out->images), (void **)&out->images));
    for (int32_t i = 0; i < out->n_turns; i++)
        TRY(read_turn(json_item(turns, (size_t)i), n_images, memory, &out->turns[i]));
    return ST_OK;
}
