/* SPDX-License-Identifier: Apache-2.0 */
/* row_png.c: puts patches back to pictures (patch_join) and lets libvips write them. The module
 * of libvips only encodes here, bytes that our own worker made; it decodes nothing. */
#include "prepd/worker/worker.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/words.h"
#include "prepd/sample/patch.h"
#include "prepd/worker/media/image_load.h"

enum { FRAMES = 2, CHANNELS = 3, CHANNEL_BYTES = PATCH_SIDE * PATCH_SIDE };

typedef struct png_run {
    const image_api *images;
    const char *path;
    bool single; /* the path is that of a file */
    arena memory;
} png_run;

static status write_file(const char *path, const uint8_t *bytes, size_t count)
{
    FILE *file = fopen(path, "wbe");
    if (!file)
        return FAIL_IN(ST_CANT_CREATE, path, "it cannot be created: %s", strerror(errno));
    const bool written = fwrite(bytes, 1, count, file) == count;
    const int failed = fclose(file) != 0 || !written ? errno : 0;
    if (failed)
        remove(path);
    return failed ? FAIL_IN(ST_IO, path, "it cannot be written: %s", strerror(failed)) : ST_OK;
}

/* Writes a picture of `grid_rows` x `grid_columns` patches, which lie in merge order. */
static status write_picture(png_run *run, const uint8_t *patches, int32_t grid_rows,
                            int32_t grid_columns, const char *path)
{
    uint8_t *rgb, *png = NULL;
    size_t count = 0;
    const int32_t height = grid_rows * PATCH_SIDE, width = grid_columns * PATCH_SIDE;
    TRY(arena_alloc(&run->memory, (size_t)height * (size_t)width * CHANNELS, (void **)&rgb));
    patch_join(patches, height, width, rgb);
    TRY(run->images->write_png(&(image){.width = width, .height = height, .rgb = rgb}, &png,
                               &count));
    const status st = write_file(path, png, count);
    free(png);
    return st;
}

/* Takes one of the two frames out of each patch [3, 2, 16, 16] of a pair. */
static void take_frame(const uint8_t *pairs, int64_t bytes, int nth_frame, uint8_t *out)
{
    for (int64_t i = 0; i < bytes; i++)
        for (int j = 0; j < CHANNELS; j++)
            memcpy(out + i * PATCH_BYTES + j * CHANNEL_BYTES,
                   pairs + i * VIDEO_PATCH_BYTES + (j * FRAMES + nth_frame) * CHANNEL_BYTES,
                   CHANNEL_BYTES);
}

static status write_clip(png_run *run, const uint8_t *pairs, const int32_t grid[3], int64_t item)
{
    const int64_t count = (int64_t)grid[1] * grid[2];
    uint8_t *patches;
    char path[STATUS_PATH_MAX];
    for (int32_t k = 0; k < grid[0] * FRAMES; k++) {
        const arena_mark mark = arena_save(&run->memory);
        TRY(arena_alloc(&run->memory, (size_t)count * PATCH_BYTES, (void **)&patches));
        take_frame(pairs + k / FRAMES * count * VIDEO_PATCH_BYTES, count, k % FRAMES, patches);
        snprintf(path, sizeof path, "%s/clip-%" PRId64 "-frame-%02d.png", run->path, item, k);
        TRY(write_picture(run, patches, grid[1], grid[2], path));
        arena_release(&run->memory, mark);
    }
    printf("%s/clip-%" PRId64 "-frame-*.png: %d frames of %d x %d pixels\n",
           escape_text(run->path).text, item, grid[0] * FRAMES, grid[2] * PATCH_SIDE,
           grid[1] * PATCH_SIDE);
    return ST_OK;
}

static status write_still(png_run *run, const uint8_t *patches, const int32_t grid[3], int64_t item)
{
    char path[STATUS_PATH_MAX];
    if (run->single)
        snprintf(path, sizeof path, "%s", run->path);
    else
        snprintf(path, sizeof path, "%s/image-%" PRId64 ".png", run->path, item);
    TRY(write_picture(run, patches, grid[1], grid[2], path));
    printf("%s: %d x %d pixels\n", escape_text(path).text, grid[2] * PATCH_SIDE,
           grid[1] * PATCH_SIDE);
    return ST_OK;
}

static status write_items(png_run *run, const row *one)
{
    const uint8_t *still = one->pixels, *clip = one->pixels_video;
    uint8_t *is_clip;
    TRY(arena_calloc(&run->memory, (size_t)one->n_items, 1, (void **)&is_clip));
    TRY(row_find_videos(one, "the sample", is_clip));
    if (run->single && (one->n_items > 1 || is_clip[0]))
        return FAIL(ST_USAGE,
                    "--png %s: the sample shows %" PRId64 " %s: name a folder, not a file",
                    run->path, one->n_items, is_clip[0] ? "clips or pictures" : "pictures");
    if (!run->single)
        TRY(file_make_folders(run->path));
    for (int64_t item = 0; item < one->n_items; item++) {
        const int32_t *grid = one->grid_thw + 3 * item;
        const int64_t count = (int64_t)grid[0] * grid[1] * grid[2];
        const arena_mark mark = arena_save(&run->memory);
        if (is_clip[item]) {
            TRY(write_clip(run, clip, grid, item));
            clip += count * VIDEO_PATCH_BYTES;
        } else {
            TRY(write_still(run, still, grid, item));
            still += count * PATCH_BYTES;
        }
        arena_release(&run->memory, mark);
    }
    return ST_OK;
}

status row_png_write(const row *one, const char *path, const char *program)
{
    static const char ending[] = ".png";
    const size_t length = strlen(path);
    png_run run = {.path = path,
                   .single = length > sizeof ending - 1 &&
                             strcmp(path + length - (sizeof ending - 1), ending) == 0};
    if (one->n_items == 0)
        return FAIL(ST_USAGE, "--png %s: the sample shows no picture", path);
    TRY(image_load(program, &run.images));
    arena_init(&run.memory, 0);
    const status st = write_items(&run, one);
    arena_done(&run.memory);
    return st;
}
