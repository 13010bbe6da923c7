/* SPDX-License-Identifier: Apache-2.0 */
/* make_row.c: decodes the pictures and clips of one row.
 *
 * Each is decoded once and its patches are written once, to the place where they stay: into the
 * item's part of the message if pixels are sent as they are, otherwise into the lease's memory. */
#include <string.h>

#include "common/base/clock.h"
#include "prepd/sample/clip.h"
#include "prepd/sample/patch.h"
#include "prepd/sample/resample.h"
#include "prepd/worker/clips.h"
#include "prepd/worker/row.h"
#include "prepd/worker/worker.h"

typedef struct row_item row_item;

typedef struct row_images {
    workshop *shop;
    const conf *options;
    const char *root;
    const json_value *files; /* the files of the lease */
    bool in_place;           /* neither filter nor codec: patches lie in shop->items_made */
    row_item *items;         /* [n_items] in the row's order; in the arena shop->row */
    int64_t n_items, most_items;
    int64_t shown; /* the first item that the last document added */
} row_images;

/* Finds, decodes, resizes and cuts the pictures of a row. Clips are left to clips.c.
 */

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

/* Begins a row of at most most_items items. The caller has set the fields down to in_place. */
static status row_images_begin(row_images *images, int64_t most_items)
{
    images->n_items = images->shown = 0;
    images->most_items = most_items;
    wire_msg_clear(images->shop->items_made);
    return arena_calloc(&images->shop->row, (size_t)most_items + 1, sizeof(*images->items),
                        (void **)&images->items);
}

/* Parts must be in the row's order, so room is made for all items of a document at once. */
static status row_images_add(row_images *images, const document *doc)
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

/* Image `index` of that document is number `file` of the lease's files: *out_patches gets its
 * patches, which are decoded unless the row has them already. ST_NO_INPUT if this machine does not
 * have the file. */
static status row_images_fill(row_images *images, int32_t index, int64_t file,
                              const lease_clip *clip, uint8_t **out_patches)
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

/* If in_place, completes the parts for codec_encode_made: items that were not filled become zero.
 */
static void row_images_finish(row_images *images)
{
    for (int64_t i = 0; images->in_place && i < images->n_items; i++) {
        const row_item *item = &images->items[i];
        if (item->done)
            continue;
        memset(item->patches, 0, (size_t)row_item_bytes(item->grid));
        codec_item_done(images->shop->items_made, (size_t)i, item->grid.pairs > 0);
    }
}

/* Does a row lease: encodes its texts, decodes its images, and makes one message of
 * them.
 *
 * A document is one sample, or a part of a long text, or a prefix or one of its branches. An image
 * that fails fails its sample, or the samples of all branches, but the other documents are still
 * made, so that one answer names all bad samples of the row. */

enum { MAX_SIDE = 1 << 20 }; /* most patches along one axis that a lease may ask for */

typedef struct row_work {
    workshop *shop;
    const json_value *lease;
    const conf *options;
    image_filter filter;
    image_codec codec;
    row_images images;
    json_writer failed;
    int64_t n_failed;
    const document *before; /* the document before this one; NULL for the first */
    chat_text whole;        /* the whole text of the sample that this or the last document is of */
    const document *prefix; /* the last prefix; NULL before the first */
    const chat_visual *prefix_visuals; /* [prefix->n_images] */
} row_work;

static status read_grids(const json_value *list, const lease_clip *clips, arena *memory,
                         fit_grid **out)
{
    fit_grid *grid;
    const size_t count = json_count(list);
    TRY(arena_calloc(memory, count + 1, sizeof(*grid), (void **)&grid));
    for (size_t i = 0; i < count; i++) {
        const int64_t height = json_int(json_item(json_item(list, i), 0), 0);
        const int64_t width = json_int(json_item(json_item(list, i), 1), 0);
        if (height < 2 || width < 2 || height % 2 || width % 2 || height > MAX_SIDE ||
            width > MAX_SIDE)
            return FAIL_IN(ST_PROTOCOL, SOURCE,
                           "a grid has %lld x %lld patches, which is impossible", (long long)height,
                           (long long)width);
        grid[i] =
            (fit_grid){(int32_t)height * PATCH_SIDE, (int32_t)width * PATCH_SIDE, (int32_t)height,
                       (int32_t)width, (int32_t)clip_pairs(clips[i].n_frames)};
    }
    *out = grid;
    return ST_OK;
}

/* The item of its lease that a document is (prepd/serve/core/state/lease.h): its sample, or for a prefix
 * the complement of its first branch's, which tells them apart. */
static int64_t doc_item(int64_t id, int32_t branches)
{
    return branches > 0 ? ~id : id;
}

static void put_failure(row_work *work, int64_t id, bool missing)
{
    const char *root = work->images.root;
    json_writer *writer = &work->failed;
    json_begin_object(writer);
    json_put_key_int(writer, "id", id);
    json_put_key_cstr(writer, "cause", lease_cause(root, status_text()));
    if (missing)
        json_put_key_cstr(writer, "missing", lease_cause(root, status_last()->input));
    json_end_object(writer);
    work->n_failed++;
}

/* Notes the warning with which image `index` of a document was decoded, if there was one. */
static void take_damage(row_work *work, const document *doc, int32_t index)
{
    workshop *shop = work->shop;
    if (shop->damage)
        shop->damaged[shop->n_damaged++] =
            (damaged_image){(int64_t)doc->sample_id, index, shop->damage};
    shop->damage = NULL;
}

/* Decodes the images of one document. */
static status doc_images(row_work *work, const json_value *value, const lease_clip *clips,
                         document *doc)
{
    const json_value *images = json_find(value, "images");
    uint8_t **patches;
    TRY(arena_calloc(&work->shop->row, (size_t)doc->n_images + 1, sizeof(*patches),
                     (void **)&patches));
    doc->patches = patches;
    TRY(row_images_add(&work->images, doc));
    if (doc->quarantined)
        return ST_OK;
    for (int32_t i = 0; i < doc->n_images; i++) {
        const int64_t file = json_int(json_item(images, (size_t)i), -1);
        work->shop->damage = NULL;
        const status st = row_images_fill(&work->images, i, file, &clips[i], &patches[i]);
        if (st == ST_OK) {
            take_damage(work, doc, i);
            continue;
        }
        if (lease_must_end(work->shop, st))
            return st;
        put_failure(work, doc_item((int64_t)doc->sample_id, doc->branches),
                    lease_is_missing(work->shop, st));
        break;
    }
    return ST_OK;
}

/* Encodes the whole text of a document's sample. If the document is another part of the sample
 * before it ("same"), that text is there already. */
static status whole_text(row_work *work, const json_value *value, const chat_visual *visuals,
                         const document *doc)
{
    workshop *shop = work->shop;
    sample smp;
    if (json_bool(json_find(value, "same"), false))
        return work->before && work->before->sample_id == doc->sample_id &&
                       (doc->n_images == 0 || work->before == work->prefix)
                   ? ST_OK
                   : FAIL_IN(ST_PROTOCOL, SOURCE,
                             "sample %llu is not the sample of the document before it",
                             (unsigned long long)doc->sample_id);
    int64_t since = clock_ns();
    TRY(lease_read_sample(value, doc->n_images, &shop->row, &smp));
    TRY(chat_encode(shop->tokens, shop->token_scratch, &shop->chat, work->options, &smp, visuals,
                    &shop->row, &work->whole));
    workshop_stage_end(shop, STAGE_TEXT, &since);
    return ST_OK;
}

/* Reads the members that every document has; *out_tokens are those of its own. */
static status read_doc(const json_value *value, document *doc, int64_t *out_tokens)
{
    int64_t id;
    TRY(json_want_int(value, "tokens", SOURCE, out_tokens));
    TRY(json_want_int(value, "id", SOURCE, &id));
    doc->sample_id = (uint64_t)id;
    doc->part = (int32_t)json_int(json_find(value, "part"), 0);
    doc->shared = json_bool(json_find(value, "shared"), false);
    doc->quarantined = json_bool(json_find(value, "bad"), false);
    return ST_OK;
}

static status check_length(const document *doc, int64_t from, int64_t tokens, int64_t whole)
{
    if (doc->text.count != whole || from < 0 || tokens < 1 || from > whole - tokens)
        return FAIL_IN(
            ST_INTERNAL, SOURCE,
            "sample %llu has %lld tokens here, but %lld in the plan: worker and index disagree",
            (unsigned long long)doc->sample_id, (long long)doc->text.count, (long long)whole);
    return ST_OK;
}

/* Makes a branch. Its sample is encoded whole, with the images of its prefix; row_build checks that
 * it begins as the prefix does, and takes the rest of it. */
static status make_branch(row_work *work, const json_value *value, int64_t before, document *doc)
{
    int64_t tokens;
    TRY(read_doc(value, doc, &tokens));
    if (!work->prefix || before < 1)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "sample %llu is a branch of no prefix",
                       (unsigned long long)doc->sample_id);
    doc->before = before;
    doc->grids = work->prefix->grids;
    doc->n_images = work->prefix->n_images;
    TRY(whole_text(work, value, work->prefix_visuals, doc));
    work->before = doc;
    doc->text = work->whole;
    return check_length(doc, before, tokens, json_int(json_find(value, "whole"), -1));
}

static status make_doc(row_work *work, const json_value *value, document *doc)
{
    workshop *shop = work->shop;
    fit_grid *grids;
    lease_clip *clips;
    chat_visual *visuals;
    int64_t tokens;
    const int64_t from = json_int(json_find(value, "from"), 0);
    doc->n_images = (int32_t)json_count(json_find(value, "grids"));
    doc->branches = (int32_t)json_int(json_find(value, "prefix"), 0);
    TRY(clips_read(json_find(value, "clips"), doc->n_images, &shop->row, &clips));
    TRY(read_grids(json_find(value, "grids"), clips, &shop->row, &grids));
    TRY(read_doc(value, doc, &tokens));
    doc->grids = grids;
    TRY(arena_calloc(&shop->row, (size_t)doc->n_images + 1, sizeof(*visuals), (void **)&visuals));
    for (int32_t i = 0; i < doc->n_images; i++)
        TRY(clips_visual(&clips[i], fit_run_tokens(grids[i]), &shop->row, &visuals[i]));
    TRY(whole_text(work, value, visuals, doc));
    work->before = doc;
    doc->text = work->whole;
    TRY(check_length(doc, from, tokens, json_int(json_find(value, "whole"), tokens)));
    if (doc->branches > 0) {
        work->prefix = doc;
        work->prefix_visuals = visuals;
    } else if (tokens < doc->text.count && doc->n_images > 0) {
        return FAIL_IN(ST_PROTOCOL, SOURCE, "a sample with pictures cannot be split");
    }
    doc->text.ids += from;
    doc->text.labels += from;
    doc->text.weights = doc->text.weights ? doc->text.weights + from : NULL;
    doc->text.count = tokens;
    return doc_images(work, value, clips, doc);
}

/* Whether the images are filtered and compressed. "auto" follows the lease: press is true while the
 * connection is slower than the workers. */
static bool is_pressed(const conf *options, bool press)
{
    return options->prepd_image_codec == CODEC_AUTO ? press
                                                    : options->prepd_image_codec == CODEC_ZSTD;
}

static status finish_row(row_work *work, document *docs, int64_t n_docs, wire_msg *out)
{
    workshop *shop = work->shop;
    row packed;
    int64_t number;
    TRY(json_want_int(work->lease, "row", SOURCE, &number));
    TRY(row_build(docs, n_docs, &shop->row, &packed));
    int64_t since = clock_ns();
    if (work->images.in_place) {
        row_images_finish(&work->images);
        TRY(codec_encode_made(shop->packer, &packed, (uint64_t)number, shop->items_made, out));
    } else {
        TRY(codec_encode(shop->packer, &packed, (uint64_t)number, work->filter, work->codec, out));
    }
    shop->made = packed;
    workshop_stage_end(shop, STAGE_PACK, &since);
    return ST_OK;
}

status make_row(workshop *shop, const json_value *lease, on_item on, void *user, wire_msg *out,
                char **out_failed)
{
    const json_value *docs_json;
    document *docs;
    int64_t most = 0;
    size_t size;
    status st = ST_OK;
    row_work work = {.shop = shop, .lease = lease, .options = lease_conf(shop, lease)};
    const bool press = json_bool(json_find(lease, "press"), false);
    const bool pressed = is_pressed(&shop->train, press);
    work.filter = pressed ? IMAGE_FILTER_PLANE : IMAGE_FILTER_NONE;
    work.codec = pressed ? IMAGE_CODEC_ZSTD : IMAGE_CODEC_NONE;
    work.images = (row_images){
        .shop = shop,
        .options = work.options,
        .in_place = work.filter == IMAGE_FILTER_NONE && work.codec == IMAGE_CODEC_NONE,
    };
    arena_reset(&shop->row);
    memset(shop->stage_ns, 0, sizeof(shop->stage_ns));
    shop->cache_hits = shop->cache_misses = 0;
    *out_failed = NULL;
    TRY(lease_root(shop, lease, &work.images.root));
    TRY(json_want_array(lease, "docs", SOURCE, &docs_json));
    TRY(json_want_array(lease, "files", SOURCE, &work.images.files));
    const int64_t n_docs = (int64_t)json_count(docs_json);
    for (int64_t i = 0; i < n_docs; i++)
        most += (int64_t)json_count(json_find(json_item(docs_json, (size_t)i), "grids"));
    TRY(arena_calloc(&shop->row, (size_t)n_docs + 1, sizeof(*docs), (void **)&docs));
    TRY(row_images_begin(&work.images, most));
    shop->n_damaged = 0;
    TRY(arena_calloc(&shop->row, (size_t)most + 1, sizeof(*shop->damaged),
                     (void **)&shop->damaged));
    json_writer_init(&work.failed);
    json_begin_object(&work.failed);
    json_begin_key_array(&work.failed, "samples");
    for (int64_t i = 0; i < n_docs; i++) {
        const json_value *value = json_item(docs_json, (size_t)i);
        const int64_t before = json_int(json_find(value, "before"), 0);
        TRY_OR(done, on(user, doc_item(json_int(json_find(value, "id"), -1),
                                       (int32_t)json_int(json_find(value, "prefix"), 0))));
        TRY_OR(done, before ? make_branch(&work, value, before, &docs[i])
                            : make_doc(&work, value, &docs[i]));
    }
    json_end_array(&work.failed);
    json_end_object(&work.failed);
    if (work.n_failed > 0)
        st = json_writer_take(&work.failed, out_failed, &size);
    else
        st = finish_row(&work, docs, n_docs, out);
done:
    json_writer_done(&work.failed);
    return st;
}
