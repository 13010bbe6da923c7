/* SPDX-License-Identifier: Apache-2.0 */
/* sim_data.c: draws the pictures, and computes what the index must say of them. Samples are in
 * sim_samples.c. */
#include "tests/sim/prepd/sim_samples.h"
#include "tests/sim/prepd/sim_sources.h"

#include <stdio.h>
#include <stdlib.h>

static void *make_array(int64_t count, size_t size)
{
    void *made = calloc((size_t)count + 1, size);
    if (!made)
        abort();
    return made;
}

static picture_fate draw_fate(sim_random *luck, const sim_data_rules *rules)
{
    const int chance[] = {rules->bad_header, rules->kills_header, rules->not_there, rules->fails,
                          rules->vanishes,   rules->changes,      rules->kills,     rules->hangs};
    int drawn = (int)sim_random_below(luck, 1000);
    for (size_t i = 0; i < sizeof chance / sizeof *chance; i++) {
        if (drawn < chance[i])
            return (picture_fate)(PICTURE_BAD_HEADER + (int)i);
        drawn -= chance[i];
    }
    return PICTURE_FINE;
}

/* From when on rows find a picture to be bad. */
static int64_t draw_bad_from(sim_random *luck, const sim_data_rules *rules, picture_fate fate)
{
    static const int64_t latest_ns = 15000000000;
    const bool can_wait =
        fate == PICTURE_FAILS || fate == PICTURE_VANISHES || fate == PICTURE_CHANGES;
    return can_wait && sim_random_chance(luck, (uint64_t)rules->later, 1000)
               ? (int64_t)sim_random_below(luck, (uint64_t)latest_ns)
               : 0;
}

static void draw_picture(sim_picture *out, int64_t number, sim_random *luck,
                         const sim_data_rules *rules)
{
    *out = (sim_picture){.width = (int32_t)sim_random_between(luck, 3, 12) * 32,
                         .height = (int32_t)sim_random_between(luck, 3, 12) * 32,
                         .bytes = sim_random_between(luck, 1000, 300000),
                         .mtime_ns = sim_random_between(luck, 1, 1000000000),
                         .fate = draw_fate(luck, rules)};
    snprintf(out->name, sizeof out->name, "%lld.jpg", (long long)number);
    if (sim_random_chance(luck, (uint64_t)rules->clips, 1000)) {
        out->frames = (int32_t)sim_random_between(luck, 8, 40);
        out->fps = (int32_t)sim_random_between(luck, 1, 12);
    }
    if (out->frames > 0 && out->fate == PICTURE_CHANGES)
        out->fate = PICTURE_FAILS; /* nobody looks at the sizes of frames */
    out->bad_from_ns = draw_bad_from(luck, rules, out->fate);
}

void sim_data_init(sim_data *out, const sim_data_rules *rules, uint64_t seed)
{
    sim_random luck = sim_random_of(seed);
    *out = (sim_data){.seed = seed,
                      .begins = rules->begins,
                      .videos = rules->videos,
                      .n_pictures = rules->n_pictures,
                      .n_samples = rules->n_samples};
    sim_sources_init(out, rules);
    out->picture = make_array(out->n_pictures, sizeof *out->picture);
    out->sample = make_array(out->n_samples, sizeof *out->sample);
    for (int64_t i = 0; i < out->n_pictures; i++)
        draw_picture(&out->picture[i], i, &luck, rules);
    sim_samples_draw(out, rules, &luck);
}

bool sim_data_has_bad_clip(const sim_data *data, int64_t number)
{
    const sim_sample *own = &data->sample[number];
    for (int32_t i = 0; i < own->n_shown; i++) {
        const sim_picture *shown = &data->picture[own->shows[i]];
        if (shown->frames > 0 && shown->fate > PICTURE_FINE && shown->fate < PICTURE_FAILS)
            return true;
    }
    return false;
}

void sim_data_done(sim_data *data)
{
    free(data->picture);
    free(data->sample);
    *data = (sim_data){0};
}

bool sim_data_appear(sim_data *data)
{
    bool any = false;
    for (int64_t i = 0; i < data->n_pictures; i++) {
        sim_picture *own = &data->picture[i];
        if (own->fate != PICTURE_NOT_THERE || own->frames > 0)
            continue; /* what is known of samples depends on their clips */
        own->fate = PICTURE_FINE;
        any = true;
    }
    return any;
}

picture_fate sim_data_fate_at(const sim_picture *picture, int64_t at_ns)
{
    return at_ns < picture->bad_from_ns ? PICTURE_FINE : picture->fate;
}

bool sim_data_is_bad(const sim_data *data, int64_t number, int64_t at_ns)
{
    const sim_sample *own = &data->sample[number];
    for (int32_t i = 0; i < own->n_shown; i++)
        if (sim_data_fate_at(&data->picture[own->shows[i]], at_ns) >= PICTURE_FAILS)
            return true;
    return false;
}

index_image sim_data_picture_record(const sim_data *data, int64_t picture)
{
    const sim_picture *own = &data->picture[picture];
    const bool refused = own->fate > PICTURE_FINE && own->fate < PICTURE_FAILS,
               there = own->fate != PICTURE_NOT_THERE;
    return (index_image){.file_bytes = there ? own->bytes : 0,
                         .mtime_ns = there ? own->mtime_ns : 0,
                         .width = refused ? 0 : own->width,
                         .height = refused ? 0 : own->height,
                         .cause = refused ? "has no header" : NULL,
                         .frames = refused ? 0 : own->frames,
                         .fps = refused ? 0 : own->fps};
}

uint64_t sim_data_turns_hash(const sim_data *data, int64_t number)
{
    const sim_sample *own = &data->sample[number];
    uint64_t hash = (uint64_t)own->n_turns;
    for (int32_t i = 0; i < own->n_turns; i++) {
        const turn *said = &own->turns[i];
        hash = sim_random_mix(hash ^ (uint64_t)said->role ^ (uint64_t)said->trained << 8);
        for (int32_t k = 0; k < said->n_parts; k++) {
            const part *piece = &said->parts[k];
            hash = sim_random_mix(hash ^ (uint64_t)(piece->text ? 1 : 2 + piece->image));
            for (int64_t j = 0; piece->text && j < piece->text_bytes; j++)
                hash = sim_random_mix(hash ^ (uint8_t)piece->text[j]);
        }
    }
    return hash;
}
