/* make.c: a lease done: the records of an index, or one row from its texts and image files. */
#include <limits.h>
#include <string.h>

#include "common/clock.h"
#include "prepd/sample/clip.h"
#include "prepd/sample/fit.h"
#include "prepd/sample/patch.h"
#include "prepd/sample/resample.h"
#include "prepd/worker/clips.h"
#include "prepd/worker/row.h"
#include "prepd/worker/worker.h"

static const char SOURCE[] = "lease";
enum { MAX_SIDE = 1 << 20 }; /* patches along one axis a lease may ask for */

static const conf *conf_of(const workshop *s, const json_value *lease)
{
    return strcmp(json_text(json_find(lease, "stream"), ""), "eval") == 0 ? &s->eval : &s->train;
}

/* Why a sample is refused travels to every machine, so it names the file as the lease did. */
static const char *cause_text(const char *root, const char *text)
{
    size_t n = strlen(root);
    return n && strncmp(text, root, n) == 0 && text[n] == '/' ? text + n + 1 : text;
}

static status root_of(const workshop *s, const json_value *lease, const char **out)
{
    if (s->o->data_root) {
        *out = s->o->data_root;
        return ST_OK;
    }
    return json_want_text(lease, "root", SOURCE, out);
}

/* --- index records --- */

static void put_int(json_writer *w, const char *key, int64_t v)
{
    json_put_key(w, key);
    json_put_int(w, v);
}

static void put_text(json_writer *w, const char *key, const char *v)
{
    json_put_key(w, key);
    json_put_cstr(w, v);
}

static status image_record(workshop *s, const conf *c, const char *root, const file_ref *f,
                           json_writer *w)
{
    file_view view = {0};
    image_info info = {0};
    arena_reset(&s->sample);
    status st = ref_view(f, root, c->image_file_bytes, &s->sample, &view);
    if (st == ST_OK)
        st = s->images->header(view.bytes, f->name, c, &info);
    put_int(w, "bytes", view.file_bytes);
    put_int(w, "mtime", view.mtime_ns);
    ref_unview(f, &view);
    TRY(st);
    put_int(w, "width", info.width);
    put_int(w, "height", info.height);
    return ST_OK;
}

static void file_record(workshop *s, const conf *c, const char *root, const file_ref *f,
                        json_writer *w)
{
    json_begin_object(w);
    const status st =
        f->video || f->frames ? clips_record(s, c, root, f, w) : image_record(s, c, root, f, w);
    if (st != ST_OK) {
        put_text(w, "cause", cause_text(root, status_text()));
        if (st == ST_NO_INPUT)
            put_text(w, "missing", cause_text(root, status_last()->input));
    }
    json_end_object(w);
}

static status image_records(workshop *s, const json_value *lease, on_item on, void *user,
                            json_writer *w)
{
    const json_value *files, *numbers;
    const char *root;
    TRY(root_of(s, lease, &root));
    TRY(json_want_array(lease, "files", SOURCE, &files));
    TRY(json_want_array(lease, "images", SOURCE, &numbers));
    if (json_count(files) != json_count(numbers))
        return FAIL_IN(ST_PROTOCOL, SOURCE, "%zu files with %zu numbers", json_count(files),
                       json_count(numbers));
    for (size_t i = 0; i < json_count(files); i++) {
        TRY(on(user, json_int(json_item(numbers, i), -1)));
        file_ref f;
        TRY(ref_read(json_item(files, i), &f));
        file_record(s, conf_of(s, lease), root, &f, w);
    }
    return ST_OK;
}

static status text_records(workshop *s, const json_value *lease, on_item on, void *user,
                           json_writer *w)
{
    const json_value *samples;
    TRY(json_want_array(lease, "samples", SOURCE, &samples));
    for (size_t i = 0; i < json_count(samples); i++) {
        const json_value *object = json_item(samples, i);
        const int64_t n_images = json_int(json_find(object, "images"), 0);
        sample smp;
        chat_text text = {0};
        lease_clip *clips;
        chat_visual *visuals;
        arena_reset(&s->row);
        if (n_images < 0 || n_images > INT32_MAX / 8)
            return FAIL_IN(ST_PROTOCOL, SOURCE, "a sample of %lld images", (long long)n_images);
        TRY(lease_read_sample(object, (int32_t)n_images, &s->row, &smp));
        TRY(clips_read(json_find(object, "clips"), smp.n_images, &s->row, &clips));
        TRY(arena_calloc(&s->row, (size_t)n_images + 1, sizeof(*visuals), (void **)&visuals));
        for (int32_t k = 0; k < smp.n_images; k++)
            TRY(clips_visual(&clips[k], 0, &s->row, &visuals[k]));
        TRY(on(user, (int64_t)smp.id));
        status st = chat_encode(s->tokens, s->token_scratch, &s->chat, conf_of(s, lease), &smp,
                                visuals, &s->row, &text);
        json_begin_object(w);
        if (st == ST_OK) {
            put_int(w, "tokens", text.n);
            put_int(w, "targets", text.n_targets);
        } else {
            put_text(w, "cause", status_text());
        }
        json_end_object(w);
    }
    return ST_OK;
}

status make_records(workshop *s, const json_value *lease, on_item on, void *user, char **out)
{
    json_writer w;
    status st;
    size_t size;
    const bool images = strcmp(json_text(json_find(lease, "kind"), ""), "images") == 0;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key(&w, "records");
    json_begin_array(&w);
    st = images ? image_records(s, lease, on, user, &w) : text_records(s, lease, on, user, &w);
    json_end_array(&w);
    json_end_object(&w);
    if (st == ST_OK)
        st = json_writer_take(&w, out, &size);
    json_writer_done(&w);
    return st;
}

/* --- rows --- */

/* An image decoded for this row; documents that show the same file at the same size share it. */
typedef struct done_image {
    int64_t file;
    fit_grid grid;
    uint8_t *patches;
} done_image;

typedef struct row_work {
    workshop *s;
    const json_value *lease, *files;
    const conf *c;
    const char *root;
    done_image *done; /* [n_done] */
    int64_t n_done;
    json_writer failed;
    int64_t n_failed;
} row_work;

/* The time since then was this stage's. */
static void stage_end(workshop *s, int stage, int64_t *inout_since)
{
    const int64_t now = clock_ns();
    s->stage_ns[stage] += now - *inout_since;
    *inout_since = now;
}

/* Patches in merge order come a band of two patch rows after the other, so each band is resized
 * into the nearest cache and cut there. */
static status cut_patches(row_work *k, const image *im, fit_grid grid, uint8_t *patches)
{
    enum { BAND = PATCH_SIDE * MERGE_SIDE };
    arena *a = &k->s->sample;
    image sized;
    resampler *r;
    uint8_t *band;
    if (k->c->image_resampler == RESAMPLER_VIPS) {
        TRY(k->s->images->resize_vips(im, grid.height, grid.width, a, &sized));
        patch_cut(sized.rgb, grid.height, grid.width, patches);
        return ST_OK;
    }
    if (im->height == grid.height && im->width == grid.width) {
        patch_cut(im->rgb, grid.height, grid.width, patches);
        return ST_OK;
    }
    const size_t band_bytes = (size_t)grid.width * BAND * 3;
    TRY(resampler_new(k->c->image_resampler, 3, im->rgb, im->height, im->width, grid.height,
                      grid.width, a, &r));
    TRY(arena_alloc(a, band_bytes, (void **)&band));
    for (int32_t y = 0; y < grid.height; y += BAND, patches += band_bytes) {
        resampler_rows(r, y, BAND, band);
        patch_cut(band, BAND, grid.width, patches);
    }
    return ST_OK;
}

static status decode_file(row_work *k, const file_ref *f, fit_grid grid, uint8_t *patches)
{
    workshop *s = k->s;
    span data;
    image im;
    arena_reset(&s->sample);
    int64_t since = clock_ns();
    TRY(ref_load(f, k->root, k->c->image_file_bytes, &s->sample, &data));
    stage_end(s, STAGE_READ, &since);
    TRY(s->images->decode(data, f->name, k->c, &s->sample, &im));
    stage_end(s, STAGE_DECODE, &since);
    TRY(cut_patches(k, &im, grid, patches));
    stage_end(s, STAGE_RESIZE, &since);
    return ST_OK;
}

static status image_patches(row_work *k, int64_t file, const lease_clip *clip, fit_grid grid,
                            uint8_t **out)
{
    const int64_t bytes = fit_patches(grid) * (clip->n ? VIDEO_PATCH_BYTES : PATCH_BYTES);
    for (int64_t i = 0; i < k->n_done; i++) {
        const done_image *d = &k->done[i];
        if (d->file == file && d->grid.h == grid.h && d->grid.w == grid.w &&
            d->grid.pairs == grid.pairs) {
            *out = d->patches;
            return ST_OK;
        }
    }
    uint8_t *patches;
    file_ref f;
    TRY(ref_read(json_item(k->files, (size_t)file), &f));
    TRY(arena_alloc(&k->s->row, (size_t)bytes, (void **)&patches));
    if (clip->n)
        TRY(clips_patches(k->s, k->c, k->root, &f, clip, grid, patches));
    else
        TRY(decode_file(k, &f, grid, patches));
    k->done[k->n_done++] = (done_image){file, grid, patches};
    *out = patches;
    return ST_OK;
}

static status read_grids(const json_value *list, const lease_clip *clips, arena *a, fit_grid **out)
{
    fit_grid *grid;
    const size_t n = json_count(list);
    TRY(arena_calloc(a, n + 1, sizeof(*grid), (void **)&grid));
    for (size_t i = 0; i < n; i++) {
        const int64_t h = json_int(json_item(json_item(list, i), 0), 0);
        const int64_t w = json_int(json_item(json_item(list, i), 1), 0);
        if (h < 2 || w < 2 || h % 2 || w % 2 || h > MAX_SIDE || w > MAX_SIDE)
            return FAIL_IN(ST_PROTOCOL, SOURCE, "grid of %lld x %lld patches", (long long)h,
                           (long long)w);
        grid[i] = (fit_grid){(int32_t)h * PATCH_SIDE, (int32_t)w * PATCH_SIDE, (int32_t)h,
                             (int32_t)w, (int32_t)clip_pairs(clips[i].n)};
    }
    *out = grid;
    return ST_OK;
}

static void put_failure(row_work *k, int64_t id, bool missing)
{
    json_begin_object(&k->failed);
    put_int(&k->failed, "id", id);
    put_text(&k->failed, "cause", cause_text(k->root, status_text()));
    if (missing)
        put_text(&k->failed, "missing", cause_text(k->root, status_last()->input));
    json_end_object(&k->failed);
    k->n_failed++;
}

/* The pictures of one document. A picture that fails fails the sample; the row goes on, so that one
 * answer names all bad samples of the row. */
static status doc_images(row_work *k, const json_value *v, const lease_clip *clips, document *doc)
{
    const json_value *images = json_find(v, "images");
    uint8_t **patches;
    TRY(arena_calloc(&k->s->row, (size_t)doc->n_images + 1, sizeof(*patches), (void **)&patches));
    doc->patches = patches;
    if (doc->quarantined)
        return ST_OK;
    for (int32_t i = 0; i < doc->n_images; i++) {
        const int64_t file = json_int(json_item(images, (size_t)i), -1);
        if (file < 0 || file >= (int64_t)json_count(k->files))
            return FAIL_IN(ST_PROTOCOL, SOURCE, "file %lld of %zu", (long long)file,
                           json_count(k->files));
        status st = image_patches(k, file, &clips[i], doc->grids[i], &patches[i]);
        if (st == ST_OK)
            continue;
        if (st == ST_PROTOCOL || st == ST_NO_MEMORY) /* the lease's or this process's, not its */
            return st;
        put_failure(k, (int64_t)doc->sample_id, st == ST_NO_INPUT);
        break;
    }
    return ST_OK;
}

static status make_doc(row_work *k, const json_value *v, document *doc)
{
    workshop *s = k->s;
    sample smp;
    fit_grid *grids;
    lease_clip *clips;
    chat_visual *visuals;
    int64_t tokens, from, whole;
    doc->n_images = (int32_t)json_count(json_find(v, "grids"));
    TRY(clips_read(json_find(v, "clips"), doc->n_images, &s->row, &clips));
    TRY(read_grids(json_find(v, "grids"), clips, &s->row, &grids));
    TRY(lease_read_sample(v, doc->n_images, &s->row, &smp));
    TRY(json_want_int(v, "tokens", SOURCE, &tokens));
    doc->sample_id = smp.id;
    doc->part = (int32_t)json_int(json_find(v, "part"), 0);
    doc->grids = grids;
    doc->shared = json_bool(json_find(v, "shared"), false);
    doc->quarantined = json_bool(json_find(v, "bad"), false);
    TRY(arena_calloc(&s->row, (size_t)doc->n_images + 1, sizeof(*visuals), (void **)&visuals));
    for (int32_t i = 0; i < doc->n_images; i++)
        TRY(clips_visual(&clips[i], fit_run_tokens(grids[i]), &s->row, &visuals[i]));
    int64_t since = clock_ns();
    TRY(chat_encode(s->tokens, s->token_scratch, &s->chat, k->c, &smp, visuals, &s->row,
                    &doc->text));
    stage_end(s, STAGE_TEXT, &since);
    from = json_int(json_find(v, "from"), 0);
    whole = json_int(json_find(v, "whole"), tokens);
    if (doc->text.n != whole || from < 0 || tokens < 1 || from > whole - tokens)
        return FAIL_IN(ST_INTERNAL, SOURCE,
                       "sample %llu has %lld tokens, the plan says %lld: worker and index disagree",
                       (unsigned long long)smp.id, (long long)doc->text.n, (long long)whole);
    if (tokens < whole && doc->n_images > 0)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "a sample with pictures can not be split");
    doc->text.ids += from;
    doc->text.labels += from;
    doc->text.weights = doc->text.weights ? doc->text.weights + from : NULL;
    doc->text.n = tokens;
    return doc_images(k, v, clips, doc);
}

static status text_member(workshop *s, const json_value *lease, const char *key, const char **out)
{
    const char *text;
    char *copy;
    TRY(json_want_text(lease, key, SOURCE, &text));
    TRY(arena_strndup(&s->row, text, strlen(text), &copy));
    *out = copy;
    return ST_OK;
}

/* auto: as the lease says. */
static image_filter filter_of(const conf *c, bool press)
{
    if (c->prepd_image_filter == FILTER_AUTO)
        return press ? IMAGE_FILTER_PLANE : IMAGE_FILTER_NONE;
    return c->prepd_image_filter == FILTER_PLANE ? IMAGE_FILTER_PLANE : IMAGE_FILTER_NONE;
}

static image_codec codec_of(const conf *c, bool press)
{
    if (c->prepd_image_codec == CODEC_AUTO)
        return press ? IMAGE_CODEC_ZSTD : IMAGE_CODEC_NONE;
    return c->prepd_image_codec == CODEC_ZSTD ? IMAGE_CODEC_ZSTD : IMAGE_CODEC_NONE;
}

static status finish_row(row_work *k, document *docs, int64_t n_docs, wire_msg *out)
{
    workshop *s = k->s;
    row r;
    int64_t number;
    TRY(json_want_int(k->lease, "row", SOURCE, &number));
    TRY(row_build(docs, n_docs, &s->row, &r));
    TRY(text_member(s, k->lease, "cursor", &r.cursor));
    TRY(text_member(s, k->lease, "quarantine", &r.quarantine));
    if (json_find(k->lease, "references"))
        TRY(text_member(s, k->lease, "references", &r.references));
    int64_t since = clock_ns();
    const bool press = json_bool(json_find(k->lease, "press"), false);
    TRY(codec_encode(s->packer, &r, (uint64_t)number, filter_of(&s->train, press),
                     codec_of(&s->train, press), out));
    stage_end(s, STAGE_PACK, &since);
    return ST_OK;
}

status make_row(workshop *s, const json_value *lease, on_item on, void *user, wire_msg *out,
                char **out_failed)
{
    const json_value *docs_json;
    document *docs;
    int64_t most = 0;
    size_t size;
    status st = ST_OK;
    row_work k = {.s = s, .lease = lease, .c = conf_of(s, lease)};
    arena_reset(&s->row);
    memset(s->stage_ns, 0, sizeof(s->stage_ns));
    *out_failed = NULL;
    TRY(root_of(s, lease, &k.root));
    TRY(json_want_array(lease, "docs", SOURCE, &docs_json));
    TRY(json_want_array(lease, "files", SOURCE, &k.files));
    const int64_t n_docs = (int64_t)json_count(docs_json);
    for (int64_t i = 0; i < n_docs; i++)
        most += (int64_t)json_count(json_find(json_item(docs_json, (size_t)i), "images"));
    TRY(arena_calloc(&s->row, (size_t)n_docs + 1, sizeof(*docs), (void **)&docs));
    TRY(arena_calloc(&s->row, (size_t)most + 1, sizeof(*k.done), (void **)&k.done));
    json_writer_init(&k.failed);
    json_begin_object(&k.failed);
    json_put_key(&k.failed, "samples");
    json_begin_array(&k.failed);
    for (int64_t i = 0; i < n_docs; i++) {
        const json_value *v = json_item(docs_json, (size_t)i);
        TRY_OR(done, on(user, json_int(json_find(v, "id"), -1)));
        TRY_OR(done, make_doc(&k, v, &docs[i]));
    }
    json_end_array(&k.failed);
    json_end_object(&k.failed);
    if (k.n_failed > 0)
        st = json_writer_take(&k.failed, out_failed, &size);
    else
        st = finish_row(&k, docs, n_docs, out);
done:
    json_writer_done(&k.failed);
    return st;
}
