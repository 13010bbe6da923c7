/* make_row.c: does a row lease: encodes its texts, decodes its images, and makes one message of
 * them.
 *
 * A document is one sample, or a part of a long text, or a prefix or one of its branches. An image
 * that fails fails its sample, or the samples of all branches, but the other documents are still
 * made, so that one answer names all bad samples of the row. */
#include <string.h>

#include "common/base/clock.h"
#include "prepd/sample/clip.h"
#include "prepd/worker/lease_read.h"
#include "prepd/worker/row_images.h"

static const char SOURCE[] = "lease";
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

/* The item of its lease that a document is (prepd/serve/core/lease.h): its sample, or for a prefix
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
