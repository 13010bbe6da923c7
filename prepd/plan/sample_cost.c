/* SPDX-License-Identifier: Apache-2.0 */
/* sample_cost.c: how many tokens and patches a sample takes in a row, or why it cannot be in one.
 *
 * The index gives the tokens of the text and the size of each image; the image processor's
 * arithmetic (prepd/sample/fit.h, clip.h) gives the grids. Pictures that are too large for the row
 * beside their text are shrunk (data.oversize), and texts that are too long are refused or split
 */
#include <inttypes.h>
#include <string.h>

#include "prepd/plan/planner.h"

#define REFUSE(...)                                                                                \
    do {                                                                                           \
        *out_cause = true;                                                                         \
        return FAIL(ST_BAD_INPUT, __VA_ARGS__);                                                    \
    } while (0)

/* The grid that the image processor makes of an image, with at most `room` patches. A negative room
 * means no limit. */
static status fit_grid_of(const plan *planned, const index_image *im, int64_t room, fit_grid *out)
{
    int64_t count;
    if (im->frames == 0)
        return room < 0 ? fit_image(im->height, im->width, planned->limits, out)
                        : fit_shrink(im->height, im->width, planned->limits, room, out);
    TRY(clip_count(im->frames, im->fps, &planned->clips, &count));
    return room < 0 ? clip_fit(count, im->height, im->width, &planned->clips, out)
                    : clip_shrink(count, im->height, im->width, &planned->clips, room, out);
}

/* The grids that the image processor makes of the sample's images, and the sum of their patches. */
static status natural_grids(const plan *planned, const sample *smp, fit_grid *grids,
                            int64_t *out_patches, bool *out_cause)
{
    int64_t patches = 0;
    for (int32_t k = 0; k < smp->n_images; k++) {
        index_image im;
        index_image_get(planned->index, smp->images[k], &im);
        const char *path = planned->data->adapter->image_path(planned->data, smp->images[k]);
        if (im.cause && strncmp(im.cause, path, strlen(path)) == 0) /* it begins with the path */
            REFUSE("%s", im.cause);
        if (im.cause)
            REFUSE("%s: %s", path, im.cause);
        if (fit_grid_of(planned, &im, -1, &grids[k]) != ST_OK)
            REFUSE("%s: %s", path, status_last()->message);
        patches += fit_patches(grids[k]);
    }
    *out_patches = patches;
    return ST_OK;
}

/* Shrinks the images until they have at most `room` patches together. Each gets the share of the
 * room that it had of the patches before (`natural` of them). */
static status shrink_grids(const plan *planned, const sample *smp, int64_t room, int64_t natural,
                           fit_grid *grids, bool *out_cause)
{
    int64_t left = room;
    for (int32_t k = 0; k < smp->n_images; k++) {
        index_image im;
        index_image_get(planned->index, smp->images[k], &im);
        int64_t share = (int64_t)((__int128)fit_patches(grids[k]) * room / natural);
        if (share > left)
            share = left;
        if (fit_grid_of(planned, &im, share, &grids[k]) != ST_OK)
            REFUSE("%s: cannot be shrunk to fit its row: %s",
                   planned->data->adapter->image_path(planned->data, smp->images[k]),
                   status_last()->message);
        left -= fit_patches(grids[k]);
    }
    return ST_OK;
}

static bool shows_clip(const plan *planned, const sample *smp)
{
    bool any = false;
    for (int32_t k = 0; k < smp->n_images && !any; k++) {
        index_image im;
        index_image_get(planned->index, smp->images[k], &im);
        any = im.frames > 0;
    }
    return any;
}

status plan_measure(const plan *planned, int64_t index, arena *memory, planned_doc *out,
                    bool *out_cause)
{
    index_sample record;
    sample smp;
    fit_grid *grids;
    int64_t patches;
    *out_cause = false;
    TRY(planned->data->adapter->outline(planned->data, index, memory, &smp));
    if (smp.cause)
        REFUSE("%s", smp.cause);
    index_sample_get(planned->index, index, &record);
    if (record.cause)
        REFUSE("%s", record.cause);
    const bool split = smp.plain && smp.n_images == 0;
    if (record.text_tokens > planned->token_budget && !split)
        REFUSE("its text of %d tokens is longer than a row of %" PRId64
               " tokens (training.seq_len)%s",
               record.text_tokens, planned->token_budget,
               shows_clip(planned, &smp)
                   ? "; the times of its clips are part of the text, and a smaller "
                     "video.max_frames makes them fewer"
                   : "");
    TRY(arena_calloc(memory, (size_t)smp.n_images + 1, sizeof *grids, (void **)&grids));
    TRY(natural_grids(planned, &smp, grids, &patches, out_cause));
    /* The vision tower merges 2 x 2 patches into one token. */
    int64_t room = 4 * (planned->token_budget - record.text_tokens);
    if (room > planned->patch_budget)
        room = planned->patch_budget;
    if (smp.n_images > 0 && patches > room) {
        if (planned->conf->data_oversize == OVERSIZE_REFUSE)
            REFUSE("its pictures have %" PRId64
                   " patches, but beside its %d tokens of text a row of "
                   "%" PRId64 " tokens and %" PRId64 " patches has room for %" PRId64
                   " (data.oversize: refuse)",
                   patches, record.text_tokens, planned->token_budget, planned->patch_budget, room);
        TRY(shrink_grids(planned, &smp, room, patches, grids, out_cause));
        patches = 0;
        for (int32_t k = 0; k < smp.n_images; k++)
            patches += fit_patches(grids[k]);
    }
    int32_t frames = 0, frame = 0;
    for (int32_t k = 0; k < smp.n_images; k++) {
        const int32_t each = grids[k].rows * grids[k].columns;
        frames += fit_runs(grids[k]);
        frame = each > frame ? each : frame;
    }
    *out = (planned_doc){
        .sample = index,
        .tokens = (int32_t)(record.text_tokens + patches / 4),
        .whole = (int32_t)(record.text_tokens + patches / 4),
        .images = smp.images,
        .patches = (int32_t)patches,
        .frames = frames,
        .frame = frame,
        .targets = record.targets,
        .grids = grids,
        .n_images = smp.n_images,
    };
    return ST_OK;
}

status plan_same_images(plan *planned, int64_t first, int64_t second, bool *out)
{
    planned_doc doc, other_doc;
    bool is_cause;
    const arena_mark mark = arena_save(&planned->scratch);
    status st = plan_measure(planned, first, &planned->scratch, &doc, &is_cause);
    if (st == ST_OK)
        st = plan_measure(planned, second, &planned->scratch, &other_doc, &is_cause);
    if (st == ST_OK) {
        *out = doc.n_images == other_doc.n_images;
        for (int32_t k = 0; *out && k < doc.n_images; k++)
            *out = doc.images[k] == other_doc.images[k] &&
                   doc.grids[k].rows == other_doc.grids[k].rows &&
                   doc.grids[k].columns == other_doc.grids[k].columns;
    }
    arena_release(&planned->scratch, mark);
    return st;
}
