/* SPDX-License-Identifier: Apache-2.0 */
/* clips.c: reads the clips of a lease, and decodes, resizes and cuts their frames. */
#include "prepd/worker/clips.h"

#include <limits.h>
#include <string.h>

#include "common/base/clock.h"
#include "prepd/sample/clip.h"
#include "prepd/sample/patch.h"
#include "prepd/sample/resample.h"
#include "proto/row/batch.h"

static const char SOURCE[] = "lease";
/* Rates for which a frame's time can still be written as text (clip_text). */
static const double MIN_FPS = 1e-10, MAX_FPS = 1e9;
static const int64_t MAX_FRAME = (int64_t)1 << 40;

static status read_clip(const json_value *value, arena *memory, lease_clip *out)
{
    const json_value *list;
    lease_clip clip = {.fps = json_real(json_find(value, "fps"), -1)};
    TRY(json_want_array(value, "index", SOURCE, &list));
    clip.n_frames = (int64_t)json_count(list);
    TRY(arena_calloc(memory, (size_t)clip.n_frames + 1, sizeof *clip.index, (void **)&clip.index));
    for (int64_t i = 0; i < clip.n_frames; i++) {
        clip.index[i] = json_int(json_item(list, (size_t)i), -1);
        if (clip.index[i] < (i ? clip.index[i - 1] : 0))
            return FAIL_IN(ST_PROTOCOL, SOURCE,
                           "frame %lld of a clip has the number %lld, expected ascending numbers",
                           (long long)i, (long long)clip.index[i]);
    }
    if (clip.n_frames < 1 || !(clip.fps == 0 || (clip.fps >= MIN_FPS && clip.fps <= MAX_FPS)) ||
        clip.index[clip.n_frames - 1] > MAX_FRAME)
        return FAIL_IN(ST_PROTOCOL, SOURCE,
                       "a clip has %lld frames at %g per second, which is impossible",
                       (long long)clip.n_frames, clip.fps);
    *out = clip;
    return ST_OK;
}

status clips_read(const json_value *list, int32_t n_images, arena *memory, lease_clip **out)
{
    lease_clip *clips;
    TRY(arena_calloc(memory, (size_t)n_images + 1, sizeof *clips, (void **)&clips));
    if (list && (int64_t)json_count(list) != n_images)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there are %zu clips for %d images", json_count(list),
                       (int)n_images);
    for (int32_t k = 0; list && k < n_images; k++) {
        const json_value *value = json_item(list, (size_t)k);
        if (json_typeof(value) != JSON_NULL)
            TRY(read_clip(value, memory, &clips[k]));
    }
    *out = clips;
    return ST_OK;
}

status clips_visual(const lease_clip *clip, int64_t pads, arena *memory, chat_visual *out)
{
    double *seconds;
    const int64_t pairs = clip_pairs(clip->n_frames);
    TRY(arena_calloc(memory, (size_t)pairs + 1, sizeof *seconds, (void **)&seconds));
    for (int64_t pair = 0; pair < pairs; pair++)
        seconds[pair] = clip_seconds(clip->index, clip->n_frames, pair, clip->fps);
    *out = (chat_visual){pads, seconds, (int32_t)pairs};
    return ST_OK;
}

/* --- records --- */

static status video_facts(workshop *shop, const conf *options, const char *root,
                          const file_ref *file, file_facts *out)
{
    video_bytes bytes;
    status st = ref_open(file, root, options->video_file_bytes, &bytes, &out->mtime_ns);
    out->bytes = bytes.size;
    TRY(st);
    if (!shop->videos)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there is a video, but by the terms the data has none");
    st = shop->videos->header(&bytes, file->name, options, &out->info);
    ref_close(&bytes);
    return st;
}

/* Size and time of the file of frame `nth` and, if info is not NULL, the size of its picture. */
static status frame_facts(workshop *shop, const conf *options, const char *root,
                          const file_ref *file, int64_t nth, file_view *view, image_info *info)
{
    char path[PATH_MAX];
    file_ref one;
    *view = (file_view){0};
    arena_reset(&shop->sample);
    TRY(ref_frame(file, nth, path, sizeof path, &one));
    status st = ref_view(&one, root, options->image_file_bytes, &shop->sample, view);
    if (st == ST_OK && info)
        st = shop->images->header(view->bytes, one.name, options, info);
    ref_unview(&one, view);
    return st;
}

/* The facts of a folder: size and time of all frames together, as dataset_image_stat counts them,
 * and the size of the first picture. */
static status folder_facts(workshop *shop, const conf *options, const char *root,
                           const file_ref *file, file_facts *out)
{
    const int64_t count = (int64_t)json_count(file->frames);
    int64_t bad = 0; /* a bad frame, whose failure is reported; the first is opened in any case */
    file_facts facts = {.info = {.frames = count, .fps = file->fps}};
    file_view view;
    image_info info;
    for (int64_t k = 0; k < count; k++) {
        const status st = frame_facts(shop, options, root, file, k, &view, NULL);
        if (st != ST_OK && st != ST_BAD_INPUT)
            return st;
        if (st != ST_OK && view.file_bytes == 0 && view.mtime_ns == 0) { /* not a regular file */
            *out = (file_facts){0};
            return st;
        }
        bad = st != ST_OK ? k : bad;
        facts.bytes += view.file_bytes;
        facts.mtime_ns = view.mtime_ns > facts.mtime_ns ? view.mtime_ns : facts.mtime_ns;
    }
    *out = facts;
    TRY(frame_facts(shop, options, root, file, bad, &view, &info));
    out->info.width = info.width;
    out->info.height = info.height;
    return ST_OK;
}

status clips_facts(workshop *shop, const conf *options, const char *root, const file_ref *file,
                   file_facts *out)
{
    return file->frames ? folder_facts(shop, options, root, file, out)
                        : video_facts(shop, options, root, file, out);
}

/* --- patches --- */

typedef struct clip_work {
    workshop *shop;
    const conf *options;
    fit_grid grid;
    int64_t n_frames;
    uint8_t *frames[2]; /* [height, width, 3] each: the pair being collected */
    uint8_t *patches;
} clip_work;

/* Gets the nth chosen frame, resizes it, and cuts patches when a pair is complete. The last frame
 * of an odd number is its own partner. */
static status take_frame(void *user, int64_t nth, const image *im)
{
    clip_work *work = (clip_work *)user;
    const fit_grid grid = work->grid;
    const size_t bytes = (size_t)grid.width * (size_t)grid.height * 3;
    arena *memory = &work->shop->sample;
    const arena_mark mark = arena_save(memory);
    int64_t since = clock_ns();
    if (work->options->image_resampler == RESAMPLER_VIPS) {
        image sized;
        TRY(work->shop->images->resize_vips(im, grid.height, grid.width, memory, &sized));
        memcpy(work->frames[nth % 2], sized.rgb, bytes);
    } else {
        TRY(resample_pixels(work->options->image_resampler, 3, im->rgb, im->height, im->width,
                            work->frames[nth % 2], grid.height, grid.width, memory));
    }
    arena_release(memory, mark);
    const bool last = nth + 1 == work->n_frames;
    if (last && nth % 2 == 0)
        memcpy(work->frames[1], work->frames[0], bytes);
    if (last || nth % 2 == 1)
        patch_cut_pair(work->frames[0], work->frames[1], grid.height, grid.width,
                       work->patches + nth / 2 * grid.rows * grid.columns * VIDEO_PATCH_BYTES);
    const int64_t spent = clock_ns() - since;
    work->shop->stage_ns[STAGE_RESIZE] += spent;
    work->shop->stage_ns[STAGE_DECODE] -= spent; /* the caller counts the whole time as decoding */
    return ST_OK;
}

/* Decodes the frames of a folder, which must all be as large as the first. */
static status folder_frames(clip_work *work, const char *root, const file_ref *file,
                            const lease_clip *clip)
{
    image first = {0};
    for (int64_t i = 0; i < clip->n_frames; i++) {
        char path[PATH_MAX];
        file_ref one;
        span data;
        image im;
        const arena_mark mark = arena_save(&work->shop->sample);
        TRY(ref_frame(file, i, path, sizeof path, &one));
        TRY(ref_load(&one, root, work->options->image_file_bytes, &work->shop->sample, &data));
        TRY(work->shop->images->decode(data, one.name, work->options, NULL, &work->shop->sample,
                                       &im));
        if (i == 0)
            first = im;
        if (im.width != first.width || im.height != first.height)
            return FAIL_IN(ST_BAD_INPUT, one.name,
                           "the frame has %d x %d pixels, but the first frame %d x %d", im.width,
                           im.height, first.width, first.height);
        TRY(workshop_note_damage(work->shop, one.name, im.warning));
        TRY(take_frame(work, i, &im));
        arena_release(&work->shop->sample, mark);
    }
    return ST_OK;
}

status clips_patches(workshop *shop, const conf *options, const char *root, const file_ref *file,
                     const lease_clip *clip, fit_grid grid, uint8_t *patches)
{
    clip_work work = {.shop = shop,
                      .options = options,
                      .grid = grid,
                      .n_frames = clip->n_frames,
                      .patches = patches};
    const int64_t began = clock_ns();
    status st;
    workshop_begin_image(shop);
    for (int i = 0; i < 2; i++)
        TRY(arena_alloc(&shop->sample, (size_t)grid.width * (size_t)grid.height * 3,
                        (void **)&work.frames[i]));
    if (file->frames) {
        st = folder_frames(&work, root, file, clip);
    } else {
        video_bytes bytes;
        int64_t mtime_ns;
        TRY(ref_open(file, root, options->video_file_bytes, &bytes, &mtime_ns));
        st = shop->videos->decode(&bytes, file->name, options, clip->index, clip->n_frames,
                                  &shop->sample, take_frame, &work);
        ref_close(&bytes);
    }
    shop->stage_ns[STAGE_DECODE] += clock_ns() - began;
    return st;
}
