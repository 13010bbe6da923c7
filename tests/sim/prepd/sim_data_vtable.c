/* SPDX-License-Identifier: Apache-2.0 */
/* sim_data_vtable.c: the simulated data set as an adapter (dataset.h), which is how the dispatcher
 * and the plan see it. */
#include "tests/sim/prepd/sim_data.h"

#include <stdio.h>
#include <string.h>

enum { MOST_FRAMES = 64 };

static const sim_data *data_of(const dataset *set)
{
    return (const sim_data *)set;
}

static void leave_open(dataset *set)
{
    (void)set; /* the schedule has it, and opens it again after the daemon's death */
}

static int64_t count_samples(const dataset *set)
{
    return data_of(set)->n_samples;
}

static int64_t count_pictures(const dataset *set)
{
    return data_of(set)->n_pictures;
}

static status read_sample(const dataset *set, int64_t number, arena *memory, sample *out)
{
    sim_sample *own = &data_of(set)->sample[number];
    turn *turns; /* texts lie in the caller's memory, as those of other adapters do */
    TRY(arena_alloc(memory, (size_t)own->n_turns * sizeof *turns, (void **)&turns));
    memcpy(turns, own->turns, (size_t)own->n_turns * sizeof *turns);
    *out = (sample){.id = (uint64_t)number,
                    .name = own->name,
                    .cause = own->fate == TEXT_NOT_ADAPTED ? own->record.cause : NULL,
                    .turns = turns,
                    .n_turns = own->n_turns,
                    .images = own->shows,
                    .n_images = own->n_shown,
                    .plain = own->plain};
    return ST_OK;
}

static status read_outline(const dataset *set, int64_t number, arena *memory, sample *out)
{
    TRY(read_sample(set, number, memory, out));
    out->turns = NULL;
    out->n_turns = 0;
    return ST_OK;
}

static const char *name_picture(const dataset *set, int64_t picture)
{
    return data_of(set)->picture[picture].name;
}

static void place_picture(const dataset *set, int64_t picture, image_place *out)
{
    const sim_picture *own = &data_of(set)->picture[picture];
    snprintf(out->path, sizeof out->path, "%s", own->name);
    out->n_frames = own->frames;
    out->fps = own->fps;
}

static const char *name_frame(const dataset *set, int64_t picture, int32_t nth)
{
    static char names[MOST_FRAMES][4];
    (void)set, (void)picture;
    snprintf(names[nth], sizeof names[nth], "%d", nth);
    return names[nth];
}

static const char *name_root(const dataset *set)
{
    (void)set;
    return "/sim";
}

static bool has_videos(const dataset *set)
{
    return data_of(set)->videos;
}

static hash128 identify_data(const dataset *set)
{
    return data_of(set)->identity;
}

static hash128 identify_contents(const dataset *set)
{
    return data_of(set)->contents;
}

static int list_parts(const dataset *set, const dataset_part **out)
{
    *out = data_of(set)->part;
    return data_of(set)->n_sources;
}

static int64_t find_piece(const dataset *set, int64_t number)
{
    return sim_data_place(data_of(set), number).piece;
}

static const char *find_reference(const dataset *set, int64_t number)
{
    const char *text = data_of(set)->sample[number].judged_by;
    return text[0] ? text : NULL;
}

#define OF_BOTH                                                                                    \
    .close = leave_open, .samples = count_samples, .sample = read_sample, .outline = read_outline, \
    .images = count_pictures, .image_path = name_picture, .place = place_picture,                  \
    .frame = name_frame, .root = name_root, .reference = find_reference, .chunk = find_piece,      \
    .videos = has_videos, .identity = identify_data

extern const dataset_vtable sim_data_vtable, sim_mixture_vtable;
const dataset_vtable sim_data_vtable = {.name = "simulated", OF_BOTH};
const dataset_vtable sim_mixture_vtable = {
    .name = "simulated mixture", .parts = list_parts, .contents = identify_contents, OF_BOTH};
