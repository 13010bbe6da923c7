/* row_images.c: finds, decodes, resizes and cuts the pictures of a row. Clips are left to clips.c.
 */
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

static void cut_band(void *user, const uint8_t *rgb, int32_t y)
{
    const cutting *c = user;
    patch_cut(rgb, BAND, c->width, c->patches + (size_t)y * (size_t)c->width * 3);
}

static void cut_ycc_band(void *user, const uint8_t *const planes[3], int64_t stride, int32_t y)
{
    const cutting *c = user;
    patch_cut_ycc(planes, stride, BAND, c->width, c->patches + (size_t)y * (size_t)c->width * 3);
}

static status cut_patches(row_images *images, const image *im, fit_grid grid, uint8_t *patches)
{
    arena *a = &images->shop->sample;
    image sized;
    resampler *r;
    uint8_t *band;
    if (images->options->image_resampler == RESAMPLER_VIPS) {
        TRY(images->shop->images->resize_vips(im, grid.height, grid.width, a, &sized));
        patch_cut(sized.rgb, grid.height, grid.width, patches);
        return ST_OK;
    }
    if (im->height == grid.height && im->width == grid.width) {
        patch_cut(im->rgb, grid.height, grid.width, patches);
        return ST_OK;
    }
    const size_t band_bytes = (size_t)grid.width * BAND * 3;
    TRY(resampler_new(images->options->image_resampler, 3, im->rgb, im->height, im->width,
                      grid.height, grid.width, a, &r));
    TRY(arena_alloc(a, band_bytes, (void **)&band));
    for (int32_t y = 0; y < grid.height; y += BAND, patches += band_bytes) {
        resampler_rows(r, y, BAND, band);
        patch_cut(band, BAND, grid.width, patches);
    }
    return ST_OK;
}

static status decode_file(row_images *images, const file_ref *f, fit_grid grid, uint8_t *patches)
{
    workshop *s = images->shop;
    span data;
    image im;
    workshop_begin_image(s);
    int64_t since = clock_ns();
    TRY(ref_load(f, images->root, images->options->image_file_bytes, &s->sample, &data));
    const hash128 key =
        s->cache ? image_cache_key(s->cache, data, f->height, f->width, grid, images->options)
                 : (hash128){{0}};
    const size_t bytes = (size_t)row_item_bytes(grid);
    const bool hit = s->cache && image_cache_get(s->cache, key, patches, bytes);
    s->cache_hits += hit;
    s->cache_misses += s->cache && !hit;
    workshop_stage_end(s, STAGE_READ, &since);
    if (hit)
        return ST_OK;
    cutting cut = {grid.width, patches};
    const image_rows rows = {grid.height, grid.width, BAND, cut_band, cut_ycc_band, &cut};
    const bool whole = images->options->image_resampler == RESAMPLER_VIPS;
    TRY(s->images->decode(data, f->name, images->options, whole ? NULL : &rows, &s->sample, &im));
    workshop_stage_end(s, STAGE_DECODE, &since);
    if (f->height >= 0 && (im.height != f->height || im.width != f->width))
        return FAIL_IN(ST_BAD_INPUT, f->name,
                       "is %d x %d pixels, but the index recorded %lld x %lld: the file changed; "
                       "restart the daemon to index it again",
                       im.width, im.height, (long long)f->width, (long long)f->height);
    if (im.rgb)
        TRY(cut_patches(images, &im, grid, patches));
    TRY(workshop_note_damage(s, NULL, im.warning));
    workshop_stage_end(s, STAGE_RESIZE, &since);
    if (s->cache && !im.warning) /* a damaged picture is reported every time */
        image_cache_put(s->cache, key, patches, bytes);
    workshop_stage_end(s, STAGE_READ, &since);
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
        row_item *t = &images->items[images->n_items++];
        *t = (row_item){.file = -1, .grid = doc->grids[i]};
        if (images->in_place)
            TRY(codec_item_room(images->shop->items_made, (size_t)row_item_bytes(t->grid),
                                &t->patches));
    }
    return ST_OK;
}

/* A finished item of the row that shows the same file at the same size, or NULL. */
static const row_item *same_image(const row_images *images, const row_item *t)
{
    for (int64_t i = 0; i < images->n_items; i++) {
        const row_item *d = &images->items[i];
        if (d->done && d->file == t->file && d->grid.rows == t->grid.rows &&
            d->grid.columns == t->grid.columns && d->grid.pairs == t->grid.pairs)
            return d;
    }
    return NULL;
}

/* Fills an item: from one that shows the same, or by decoding its file. */
static status fill_item(row_images *images, row_item *t, const lease_clip *clip)
{
    const size_t bytes = (size_t)row_item_bytes(t->grid);
    const row_item *same = same_image(images, t);
    file_ref f;
    if (same && images->in_place) {
        memcpy(t->patches, same->patches, bytes);
    } else if (same) {
        t->patches = same->patches;
    } else {
        TRY(ref_read(json_item(images->files, (size_t)t->file), images->shop->parts, &f));
        if (!t->patches)
            TRY(arena_alloc(&images->shop->row, bytes, (void **)&t->patches));
        TRY(clip->n_frames ? clips_patches(images->shop, images->options, images->root, &f, clip,
                                           t->grid, t->patches)
                           : decode_file(images, &f, t->grid, t->patches));
    }
    t->done = true;
    if (images->in_place)
        codec_item_done(images->shop->items_made, (size_t)(t - images->items), t->grid.pairs > 0);
    return ST_OK;
}

status row_images_fill(row_images *images, int32_t i, int64_t file, const lease_clip *clip,
                       uint8_t **out_patches)
{
    if (i >= images->n_items - images->shown)
        return FAIL_IN(ST_PROTOCOL, SOURCE,
                       "a document shares more images than the one before it shows");
    if (file < 0 || file >= (int64_t)json_count(images->files))
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there is no file %lld of %zu", (long long)file,
                       json_count(images->files));
    row_item *t = &images->items[images->shown + i];
    if (!t->done) {
        t->file = file;
        TRY(fill_item(images, t, clip));
    }
    *out_patches = t->patches;
    return ST_OK;
}

void row_images_finish(row_images *images)
{
    for (int64_t i = 0; images->in_place && i < images->n_items; i++) {
        const row_item *t = &images->items[i];
        if (t->done)
            continue;
        memset(t->patches, 0, (size_t)row_item_bytes(t->grid));
        codec_item_done(images->shop->items_made, (size_t)i, t->grid.pairs > 0);
    }
}
