/* row_images.c: finds, decodes, resizes and cuts the pictures of a row.
 * Clips are left to clips.c. */
#include "prepd/worker/row_images.h"

#include <string.h>

#include "common/base/clock.h"
#include "prepd/sample/patch.h"
#include "prepd/sample/resample.h"

static const char SOURCE[] = "lease";

struct row_item {
    int64_t file;
    fit_grid grid;
    uint8_t *patches; /* NULL if no room is made yet */
    bool done;
};

/* In merge order, patches come in bands of two patch rows (2 x 2 patches are merged). A picture
 * that needs no resizing is cut into patches while it is decoded; any other is resized one band at
 * a time, so that the band is still in the processor's cache when it is cut. */
enum { BAND = PATCH_SIDE * MERGE_SIDE };

typedef struct cutting {
    int32_t width;
    uint8_t *patches;
} cutting;

static void cut_band(void *user, const uint8_t *rgb, int32_t line)
{
    const cutting *work = user;
    patch_cut(rgb, BAND, work->width, work->patches + (size_t)line * (size_t)work->width * 3);
}

static void cut_ycc_band(void *user, const uint8_t *const planes[3], int64_t stride, int32_t line)
{
    const cutting *work = user;
    patch_cut_ycc(planes, stride, BAND, work->width,
                  work->patches + (size_t)line * (size_t)work->width * 3);
}

static status cut_patches(row_images *images, const image *im, fit_grid grid, uint8_t *patches)
{
    arena *memory = &images->shop->sample;
    image sized;
    resampler *maker;
    uint8_t *band;
    if (images->options->image_resampler == RESAMPLER_VIPS) {
        TRY(images->shop->images->resize_vips(im, grid.height, grid.width, memory, &sized));
        patch_cut(sized.rgb, grid.height, grid.width, patches);
        return ST_OK;
    }
    if (im->height == grid.height && im->width == grid.width) {
        patch_cut(im->rgb, grid.height, grid.width, patches);
        return ST_OK;
    }
    const size_t band_bytes = (size_t)grid.width * BAND * 3;
    TRY(resampler_new(images->options->image_resampler, 3, im->rgb, im->height, im->width,
                      grid.height, grid.width, memory, &maker));
    TRY(arena_alloc(memory, band_bytes, (void **)&band));
    for (int32_t line = 0; line < grid.height; line += BAND, patches += band_bytes) {
        resampler_rows(maker, line, BAND, band);
        patch_cut(band, BAND, grid.width, patches);
    }
    return ST_OK;
}

static status decode_file(row_images *images, const file_ref *file, fit_grid grid, uint8_t *patches)
{
    workshop *shop = images->shop;
    span data;
    image im;
    workshop_begin_image(shop);
    int64_t since = clock_ns();
    TRY(ref_load(file, images->root, images->options->image_file_bytes, &shop->sample, &data));
    const hash128 key = shop->cache ? image_cache_key(shop->cache, data, file->height, file->width,
                                                      grid, images->options)
                                    : (hash128){{0}};
    const size_t bytes = (size_t)row_item_bytes(grid);
    const bool hit = shop->cache && image_cache_get(shop->cache, key, patches, bytes);
    shop->cache_hits += hit;
    shop->cache_misses += shop->cache && !hit;
    workshop_stage_end(shop, STAGE_READ, &since);
    if (hit)
        return ST_OK;
    cutting cut = {grid.width, patches};
    const image_rows rows = {grid.height, grid.width, BAND, cut_band, cut_ycc_band, &cut};
    const bool whole = images->options->image_resampler == RESAMPLER_VIPS;
    TRY(shop->images->decode(data, file->name, images->options, whole ? NULL : &rows, &shop->sample,
                             &im));
    workshop_stage_end(shop, STAGE_DECODE, &since);
    if (file->height >= 0 && (im.height != file->height || im.width != file->width))
        return FAIL_IN(ST_BAD_INPUT, file->name,
                       "is %d x %d pixels, but the index recorded %lld x %lld: the file changed; "
                       "restart the daemon to index it again",
                       im.width, im.height, (long long)file->width, (long long)file->height);
    if (im.rgb)
        TRY(cut_patches(images, &im, grid, patches));
    TRY(workshop_note_damage(shop, NULL, im.warning));
    workshop_stage_end(shop, STAGE_RESIZE, &since);
    if (shop->cache && !im.warning) /* a damaged picture is reported every time */
        image_cache_put(shop->cache, key, patches, bytes);
    workshop_stage_end(shop, STAGE_READ, &since);
    return ST_OK;
}

status row_images_begin(row_images *images, int64_t most_items)
{
    images->n_items = images->shown = 0;
    images->most_items = most_items;
    wire_msg_clear(images->shop->items_made);
    return arena_calloc(&images->shop->row, (size_t)most_items + 1, sizeof(*images->items),
                        (void **)&images->items);
}

/* Parts must be in the row's order, so room is made for all items of a document at once. */
status row_images_add(row_images *images, const document *doc)
{
    if (doc->shared)
        return ST_OK;
    if (doc->n_images > images->most_items - images->n_items)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there are more images than the lease has grids");
    images->shown = images->n_items;
    for (int32_t i = 0; i < doc->n_images; i++) {
        row_item *item = &images->items[images->n_items++];
        *item = (row_item){.file = -1, .grid = doc->grids[i]};
        if (images->in_place)
            TRY(codec_item_room(images->shop->items_made, (size_t)row_item_bytes(item->grid),
                                &item->patches));
    }
    return ST_OK;
}

/* A finished item of the row that shows the same file at the same size, or NULL. */
static const row_item *same_image(const row_images *images, const row_item *item)
{
    for (int64_t i = 0; i < images->n_items; i++) {
        const row_item *same = &images->items[i];
        if (same->done && same->file == item->file && same->grid.rows == item->grid.rows &&
            same->grid.columns == item->grid.columns && same->grid.pairs == item->grid.pairs)
            return same;
    }
    return NULL;
}

/* Fills an item: from one that shows the same, or by decoding its file. */
static status fill_item(row_images *images, row_item *item, const lease_clip *clip)
{
    const size_t bytes = (size_t)row_item_bytes(item->grid);
    const row_item *same = same_image(images, item);
    file_ref file;
    if (same && images->in_place) {
        memcpy(item->patches, same->patches, bytes);
    } else if (same) {
        item->patches = same->patches;
    } else {
        TRY(ref_read(json_item(images->files, (size_t)item->file), images->shop->parts, &file));
        if (!item->patches)
            TRY(arena_alloc(&images->shop->row, bytes, (void **)&item->patches));
        TRY(clip->n_frames ? clips_patches(images->shop, images->options, images->root, &file, clip,
                                           item->grid, item->patches)
                           : decode_file(images, &file, item->grid, item->patches));
    }
    item->done = true;
    if (images->in_place)
        codec_item_done(images->shop->items_made, (size_t)(item - images->items),
                        item->grid.pairs > 0);
    return ST_OK;
}

status row_images_fill(row_images *images, int32_t index, int64_t file, const lease_clip *clip,
                       uint8_t **out_patches)
{
    if (index >= images->n_items - images->shown)
        return FAIL_IN(ST_PROTOCOL, SOURCE,
                       "a document shares more images than the one before it shows");
    if (file < 0 || file >= (int64_t)json_count(images->files))
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there is no file %lld of %zu", (long long)file,
                       json_count(images->files));
    row_item *item = &images->items[images->shown + index];
    if (!item->done) {
        item->file = file;
        TRY(fill_item(images, item, clip));
    }
    *out_patches = item->patches;
    return ST_OK;
}

void row_images_finish(row_images *images)
{
    for (int64_t i = 0; images->in_place && i < images->n_items; i++) {
        const row_item *item = &images->items[i];
        if (item->done)
            continue;
        memset(item->patches, 0, (size_t)row_item_bytes(item->grid));
        codec_item_done(images->shop->items_made, (size_t)i, item->grid.pairs > 0);
    }
}
