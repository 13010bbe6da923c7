/* lease_read.c: reads the members of a lease, above all the turns of a sample. */
#include "prepd/worker/lease_read.h"

#include <string.h>

static const char SOURCE[] = "lease";

const conf *lease_conf(const workshop *s, const json_value *lease)
{
    return strcmp(json_text(json_find(lease, "stream"), ""), "eval") == 0 ? &s->eval : &s->train;
}

const char *lease_cause(const char *root, const char *text)
{
    size_t n = strlen(root);
    return n && strncmp(text, root, n) == 0 && text[n] == '/' ? text + n + 1 : text;
}

bool lease_must_end(const workshop *s, status st)
{
    return st == ST_PROTOCOL || st == ST_NO_MEMORY || (st == ST_IO && !s->options->data_root);
}

bool lease_is_missing(const workshop *s, status st)
{
    return st == ST_NO_INPUT || (st == ST_IO && s->options->data_root);
}

status lease_root(const workshop *s, const json_value *lease, const char **out)
{
    if (s->options->data_root) {
        *out = s->options->data_root;
        return ST_OK;
    }
    return json_want_text(lease, "root", SOURCE, out);
}

static status read_weights(const json_value *v, arena *a, turn *t)
{
    float *weights;
    if (!v)
        return ST_OK;
    if ((int64_t)json_count(v) != t->n_parts)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there are %zu weights for %d parts", json_count(v),
                       (int)t->n_parts);
    TRY(arena_calloc(a, json_count(v) + 1, sizeof *weights, (void **)&weights));
    for (int32_t p = 0; p < t->n_parts; p++) {
        const double w = json_real(json_item(v, (size_t)p), -1);
        if (!(w >= 0 && w <= 1e6))
            return FAIL_IN(ST_PROTOCOL, SOURCE, "the weight %g is not within 0 to 1e6", w);
        weights[p] = (float)w;
    }
    t->weights = weights;
    return ST_OK;
}

static status read_turn(const json_value *v, int32_t n_images, arena *a, turn *out)
{
    int64_t role;
    const json_value *parts;
    TRY(json_want_int(v, "role", SOURCE, &role));
    TRY(json_want_array(v, "parts", SOURCE, &parts));
    if (role < ROLE_SYSTEM || role > ROLE_ASSISTANT)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there is no role %lld", (long long)role);
    *out = (turn){.role = (int)role,
                  .trained = json_bool(json_find(v, "trained"), false),
                  .n_parts = (int32_t)json_count(parts)};
    TRY(arena_calloc(a, json_count(parts) + 1, sizeof(part), (void **)&out->parts));
    for (int32_t p = 0; p < out->n_parts; p++) {
        const json_value *item = json_item(parts, (size_t)p);
        if (json_typeof(item) == JSON_TEXT) {
            char *text;
            TRY(arena_strndup(a, json_text(item, ""), json_text_size(item), &text));
            out->parts[p] = (part){text, (int64_t)json_text_size(item), -1};
            continue;
        }
        int64_t number = json_int(item, -1);
        if (number < 0 || number >= n_images)
            return FAIL_IN(ST_PROTOCOL, SOURCE, "there is no image %lld in a sample with %d images",
                           (long long)number, (int)n_images);
        out->parts[p] = (part){.image = (int32_t)number};
    }
    return read_weights(json_find(v, "weights"), a, out);
}

status lease_read_sample(const json_value *object, int32_t n_images, arena *a, sample *out)
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
    TRY(arena_calloc(a, json_count(turns) + 1, sizeof(turn), (void **)&out->turns));
    TRY(arena_calloc(a, (size_t)n_images + 1, sizeof(*out->images), (void **)&out->images));
    for (int32_t t = 0; t < out->n_turns; t++)
        TRY(read_turn(json_item(turns, (size_t)t), n_images, a, &out->turns[t]));
    return ST_OK;
}
