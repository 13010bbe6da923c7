/* payload.c: what a lease says to a worker, as JSON, and the cursor of a row.
 *
 * A lease says everything that the worker needs and nothing of the data set's own formats. It holds
 * texts and relative paths; pixels never come through here. The forms, each an object:
 *
 *   images  {"kind":"images","stream":S,"root":R,"files":[FILE...],"images":[number...]}
 *   texts   {"kind":"texts","stream":S,"samples":[{"id":N,"turns":[...],"clips":[CLIP...]}...]}
 *           both have "each":true if the lease was lost before: then ON is sent for every record;
 *           and "last":true if one more death over its one item would make that item poison
 *   row     {"kind":"row","stream":S,"root":R,"row":N,"cursor":JSON text,"quarantine":JSON text,
 *            "references":JSON text,
 *            "files":[FILE...],
 *            "docs":[{"id":N,"part":P,"tokens":T,"bad":bool,"turns":[...],"images":[file...],
 *                     "grids":[[h,w]...],"clips":[CLIP...]}...]}
 *            "press":bool says whether images are compressed, where the options leave it open.
 *            In a document, "shared":true means that its images are those of the document before
 *            it; "plain":true marks a plain text; a part of a text has "from":F and "whole":W, in
 *            tokens; "same":true stands instead of turns for the text of the document before it.
 *   FILE    {"path":P,"bytes":B,"height":H,"width":W}
 *            A piece of a file has "in":path of the file and "at":offset as well. An images lease
 *            has no sizes in pixels, and no "bytes" unless the file is a piece; a clip has no sizes
 *            in pixels. A video has "video":true. A folder of frames has "fps":R and
 *            "frames":[name...], in a row only the frames that are taken. For a worker without a
 *            data root "shipped":[...] describes the bytes that are sent along (ship.h).
 *   CLIP    one per image, in samples that show a clip: null for a still picture, otherwise
 *            {"index":[numbers of the frames that are taken...],"fps":R}
 *   turn    {"role":R,"trained":bool,"parts":["text" or number of an image of the sample...],
 *            "weights":[one per part...]}, without "weights" if all are 1
 *
 * When you add a member, read it in prepd/worker/lease_read.c as well. The forms have no version,
 * since a daemon and its workers must be of the same build (joining.c). */
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/ship.h"
#include "prepd/serve/dispatch_state.h"

static void put_plain(json_writer *w, const sample *s)
{
    if (!s->plain)
        return;
    json_put_key_bool(w, "plain", true);
}

static void put_turns(json_writer *w, const sample *s)
{
    json_begin_key_array(w, "turns");
    for (int32_t t = 0; t < s->n_turns; t++) {
        const turn *u = &s->turns[t];
        json_begin_object(w);
        json_put_key_int(w, "role", u->role);
        json_put_key_bool(w, "trained", u->trained);
        if (u->weights) {
            json_begin_key_array(w, "weights");
            for (int32_t p = 0; p < u->n_parts; p++)
                json_put_real(w, (double)u->weights[p]);
            json_end_array(w);
        }
        json_begin_key_array(w, "parts");
        for (int32_t p = 0; p < u->n_parts; p++) {
            if (u->parts[p].text)
                json_put_text(w, u->parts[p].text, (size_t)u->parts[p].text_bytes);
            else
                json_put_int(w, u->parts[p].image);
        }
        json_end_array(w);
        json_end_object(w);
    }
    json_end_array(w);
}

/* Which frames of an image are taken. `count` is 0 for a still picture. */
typedef struct taken {
    int64_t *index; /* [count] in the arena */
    int64_t count;
    double fps;
} taken;

static status take_frames(const source *section, int64_t j, arena *a, taken *out)
{
    index_image x;
    index_image_get(section->index, j, &x);
    *out = (taken){.fps = x.fps};
    return x.frames ? clip_choose(x.frames, x.fps, &section->clips, a, &out->index, &out->count)
                    : ST_OK;
}

static status put_clips(const source *section, const sample *smp, arena *a, json_writer *w)
{
    taken *t;
    bool any = false;
    TRY(arena_calloc(a, (size_t)smp->n_images + 1, sizeof(*t), (void **)&t));
    for (int32_t k = 0; k < smp->n_images; k++) {
        TRY(take_frames(section, smp->images[k], a, &t[k]));
        any |= t[k].count > 0;
    }
    if (!any)
        return ST_OK;
    json_begin_key_array(w, "clips");
    for (int32_t k = 0; k < smp->n_images; k++) {
        if (t[k].count == 0) {
            json_put_null(w);
            continue;
        }
        json_begin_object(w);
        json_begin_key_array(w, "index");
        for (int64_t i = 0; i < t[k].count; i++)
            json_put_int(w, t[k].index[i]);
        json_end_array(w);
        json_put_key_real(w, "fps", t[k].fps);
        json_end_object(w);
    }
    json_end_array(w);
    return ST_OK;
}

/* t: the frames that are taken; NULL for all. */
static void put_frames(const dataset *d, int64_t j, const image_place *place, const taken *t,
                       json_writer *w)
{
    json_put_key_real(w, "fps", place->fps);
    json_begin_key_array(w, "frames");
    for (int64_t i = 0; i < (t ? t->count : place->n_frames); i++)
        json_put_cstr(w, d->adapter->frame(d, j, (int32_t)(t ? t->index[i] : i)));
    json_end_array(w);
}

/* known: the image's index record, or NULL if it is not indexed yet. t: as in put_frames. ship:
 * receives the file's bytes, or NULL if the worker has the file. */
static status put_file(const source *section, int64_t j, const index_image *known, const taken *t,
                       wire_msg *ship, json_writer *w)
{
    const dataset *d = section->data;
    image_place place;
    dataset_image_place(d, j, &place);
    int64_t bytes = known ? known->file_bytes : -1;
    json_begin_object(w);
    json_put_key_cstr(w, "path", d->adapter->image_path(d, j));
    if (place.bytes >= 0) {
        json_put_key_cstr(w, "in", place.path);
        json_put_key_int(w, "at", place.offset);
        bytes = place.bytes;
    }
    if (bytes >= 0)
        json_put_key_int(w, "bytes", bytes);
    if (known && !known->frames) {
        json_put_key_int(w, "height", known->height);
        json_put_key_int(w, "width", known->width);
    }
    if (place.video)
        json_put_key_bool(w, "video", true);
    if (place.n_frames)
        put_frames(d, j, &place, t, w);
    if (ship)
        TRY(ship_file(d, j, &place, t ? t->index : NULL, t ? t->count : place.n_frames,
                      &section->options, ship, w));
    json_end_object(w);
    return ST_OK;
}

static status put_images(source *section, const lease *l, int64_t solo, wire_msg *ship,
                         json_writer *w)
{
    const dataset *d = section->data;
    json_put_key_cstr(w, "root", d->adapter->root(d));
    json_begin_key_array(w, "files");
    for (int64_t i = 0; i < l->n_items; i++)
        if (solo < 0 || l->item[i] == solo)
            TRY(put_file(section, l->item[i], NULL, NULL, ship, w));
    json_end_array(w);
    json_begin_key_array(w, "images");
    for (int64_t i = 0; i < l->n_items; i++)
        if (solo < 0 || l->item[i] == solo)
            json_put_int(w, l->item[i]);
    json_end_array(w);
    return ST_OK;
}

static status put_texts(source *section, const lease *l, int64_t solo, arena *a, json_writer *w)
{
    json_begin_key_array(w, "samples");
    for (int64_t i = 0; i < l->n_items; i++) {
        sample smp;
        if (solo >= 0 && l->item[i] != solo)
            continue;
        TRY(section->data->adapter->sample(section->data, l->item[i], a, &smp));
        json_begin_object(w);
        json_put_key_int(w, "id", l->item[i]);
        json_put_key_int(w, "images", smp.n_images);
        put_plain(w, &smp);
        put_turns(w, &smp);
        TRY(put_clips(section, &smp, a, w));
        json_end_object(w);
    }
    json_end_array(w);
    return ST_OK;
}

/* The distinct image files of a row, in order of first appearance. */
typedef struct file_set {
    int32_t *image; /* [count] numbers in the data set */
    int64_t count;
} file_set;

static int64_t file_number(file_set *f, int32_t image)
{
    for (int64_t i = f->count - 1; i >= 0; i--)
        if (f->image[i] == image)
            return i;
    f->image[f->count] = image;
    return f->count++;
}

static status put_files(const source *section, const file_set *f, arena *a, wire_msg *ship,
                        json_writer *w)
{
    json_begin_key_array(w, "files");
    for (int64_t i = 0; i < f->count; i++) {
        index_image x;
        taken t;
        index_image_get(section->index, f->image[i], &x);
        TRY(take_frames(section, f->image[i], a, &t));
        TRY(put_file(section, f->image[i], &x, &t, ship, w));
    }
    json_end_array(w);
    return ST_OK;
}

/* same: the document is another part of the text that was written just before it. */
static status put_doc(const consumer_seat *consumer, const planned_doc *p, bool shared, bool same,
                      const sample *smp, file_set *files, arena *a, json_writer *w)
{
    json_begin_object(w);
    json_put_key_int(w, "id", p->sample);
    json_put_key_int(w, "part", p->part);
    json_put_key_int(w, "tokens", p->tokens);
    if (p->tokens != p->whole) {
        json_put_key_int(w, "from", p->from);
        json_put_key_int(w, "whole", p->whole);
    }
    put_plain(w, smp);
    if (shared)
        json_put_key_bool(w, "shared", true);
    json_put_key_bool(w, "bad", quarantine_find(&consumer->bad, p->sample) != NULL);
    if (same) {
        json_put_key_bool(w, "same", true);
    } else {
        put_turns(w, smp);
    }
    json_begin_key_array(w, "images");
    for (int32_t k = 0; k < smp->n_images; k++)
        json_put_int(w, file_number(files, smp->images[k]));
    json_end_array(w);
    json_begin_key_array(w, "grids");
    for (int32_t k = 0; k < p->n_images; k++) {
        json_begin_array(w);
        json_put_int(w, p->grids[k].rows);
        json_put_int(w, p->grids[k].columns);
        json_end_array(w);
    }
    json_end_array(w);
    TRY(put_clips(consumer->src, smp, a, w));
    json_end_object(w);
    return ST_OK;
}

static status put_decision(const source *section, int64_t id, const char *cause, arena *a,
                           json_writer *w)
{
    sample smp;
    TRY(section->data->adapter->outline(section->data, id, a, &smp));
    json_begin_object(w);
    json_put_key_int(w, "id", id);
    json_put_key_cstr(w, "cause", cause);
    json_put_key_cstr(w, "name", smp.name ? smp.name : "");
    if (smp.n_images > 0)
        json_put_key_cstr(w, "file",
                          section->data->adapter->image_path(section->data, smp.images[0]));
    json_end_object(w);
    return ST_OK;
}

/* Writes which samples of this row are quarantined; in the sample stream also why a sample is
 * refused. It is JSON text inside JSON, because the worker only passes it on. */
static status put_quarantine(const consumer_seat *consumer, const planned_row *r, arena *a,
                             json_writer *w)
{
    const source *section = consumer->src;
    json_writer list;
    char *text = NULL;
    size_t size = 0;
    status st = ST_OK;
    json_writer_init(&list);
    json_begin_array(&list);
    for (int64_t i = 0; i < r->n_docs; i++) {
        const char *cause = quarantine_find(&consumer->bad, r->docs[i].sample);
        if (cause)
            TRY_OR(done, put_decision(section, r->docs[i].sample, cause, a, &list));
    }
    if (consumer->kind == PLAN_SAMPLES && r->n_docs == 0 &&
        (int64_t)r->number < index_samples(section->index)) {
        const char *cause = plan_cause(consumer->plan, (int64_t)r->number);
        if (cause)
            TRY_OR(done, put_decision(section, (int64_t)r->number, cause, a, &list));
    }
    json_end_array(&list);
    TRY_OR(done, json_writer_take(&list, &text, &size));
    json_put_key_text(w, "quarantine", text, size);
done:
    free(text);
    json_writer_done(&list);
    return st;
}

/* Writes an entry per document, if any document has references. */
static status put_references(const source *section, const planned_row *r, json_writer *w)
{
    json_writer list;
    char *text = NULL;
    size_t size;
    bool any = false;
    if (!section->options.data_references || !section->data->adapter->reference)
        return ST_OK;
    json_writer_init(&list);
    json_begin_array(&list);
    for (int64_t i = 0; i < r->n_docs; i++) {
        const char *reference = section->data->adapter->reference(section->data, r->docs[i].sample);
        any |= reference != NULL;
        if (reference)
            json_put_raw(&list, reference, strlen(reference));
        else
            json_put_null(&list);
    }
    json_end_array(&list);
    TRY(json_writer_take(&list, &text, &size));
    if (any)
        json_put_key_text(w, "references", text, size);
    free(text);
    return ST_OK;
}

/* Writes the epoch in which the next step begins, or this row's if that is earlier, and its first
 * row. A consumer that comes back with this cursor needs nothing that lies before it. */
static void put_begin(const consumer_seat *consumer, const planned_row *r, uint64_t next,
                      json_writer *w)
{
    const uint64_t g = (uint64_t)consumer->src->options.training_global_batch_size,
                   step = next - next % g;
    uint64_t first;
    const uint64_t epoch =
        plan_epoch_of(consumer->plan, consumer->from, step < r->number ? step : r->number, &first);
    json_begin_key_object(w, "begin");
    json_put_key_int(w, "epoch", (int64_t)epoch);
    json_put_key_int(w, "row", (int64_t)first);
    json_end_object(w);
}

/* Writes the weights of a mixture, on which its order depends, by the names of its sources, and the
 * digest of the index without the weights. With both, a consumer that comes back to other weights
 * can be told which one differs. */
static void put_weights(const source *section, json_writer *w)
{
    const dataset_part *parts = NULL;
    const int n =
        section->data->adapter->parts ? section->data->adapter->parts(section->data, &parts) : 0;
    char digest[HASH_TEXT];
    if (n == 0)
        return;
    hash_print(index_contents(section->index), digest);
    json_put_key_cstr(w, "contents", digest);
    json_begin_key_object(w, "weights");
    for (int k = 0; k < n; k++)
        json_put_key_real(w, parts[k].name, parts[k].weight);
    json_end_object(w);
}

status payload_cursor(consumer_seat *consumer, const planned_row *r, uint64_t next, char **out)
{
    json_writer w;
    const char *bad;
    char digest[HASH_TEXT];
    size_t size;
    hash_print(index_digest(consumer->src->index), digest);
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_cstr(&w, "stream", consumer->stream);
    json_put_key_int(&w, "row", (int64_t)next);
    json_put_key_int(&w, "step",
                     (int64_t)(next / (uint64_t)consumer->src->options.training_global_batch_size));
    json_put_key_int(&w, "epoch", (int64_t)r->epoch);
    json_put_key_int(&w, "window", (int64_t)r->window);
    put_begin(consumer, r, next, &w);
    json_put_key_int(&w, "plan", PLAN_VERSION);
    json_put_key_cstr(&w, "index", digest);
    put_weights(consumer->src, &w);
    fingerprints_put(&consumer->src->fingerprints, &w);
    json_put_key(&w, "quarantine");
    status st = quarantine_json(&consumer->bad, &bad);
    if (st == ST_OK) {
        json_put_raw(&w, bad, strlen(bad));
        json_end_object(&w);
        st = json_writer_take(&w, out, &size);
    }
    json_writer_done(&w);
    return st;
}

static status put_row(const lease *l, int64_t solo, arena *a, wire_msg *ship, json_writer *w)
{
    consumer_seat *consumer = l->owner;
    source *section = consumer->src;
    planned_row r;
    char *cursor = NULL;
    file_set files = {0};
    int64_t most = 0;
    TRY(plan_row(consumer->plan, consumer->from, l->row, a, &r));
    for (int64_t i = 0; i < r.n_docs; i++)
        most += r.docs[i].n_images;
    TRY(arena_calloc(a, (size_t)most + 1, sizeof(*files.image), (void **)&files.image));
    json_put_key_cstr(w, "stream", section->name);
    json_put_key_cstr(w, "root", section->data->adapter->root(section->data));
    json_put_key_int(w, "row", (int64_t)l->row);
    TRY(payload_cursor(consumer, &r, l->after, &cursor));
    json_put_key_cstr(w, "cursor", cursor);
    free(cursor);
    TRY(put_quarantine(consumer, &r, a, w));
    TRY(put_references(section, &r, w));
    json_begin_key_array(w, "docs");
    sample smp = {0};
    for (int64_t i = 0; i < r.n_docs; i++) {
        /* A long text of many parts is read and written once. */
        const bool same =
            i > 0 && r.docs[i].sample == r.docs[i - 1].sample && r.docs[i].tokens < r.docs[i].whole;
        if (solo >= 0 && r.docs[i].sample != solo)
            continue;
        if (!same)
            TRY(section->data->adapter->sample(section->data, r.docs[i].sample, a, &smp));
        if (smp.n_images != r.docs[i].n_images)
            return FAIL(ST_INTERNAL, "sample %lld has %d images, but the plan counts %d",
                        (long long)r.docs[i].sample, (int)smp.n_images, (int)r.docs[i].n_images);
        TRY(put_doc(consumer, &r.docs[i], r.docs[i].shared && solo < 0, same, &smp, &files, a, w));
    }
    json_end_array(w);
    return put_files(section, &files, a, ship, w);
}

status payload_lease(dispatch *d, lease *l, bool press, wire_msg *ship, char **out,
                     size_t *out_size)
{
    static const char *const kinds[] = {"row", "images", "texts"};
    json_writer w;
    status st = ST_OK;
    int64_t solo = lease_solo_item(l);
    arena *a = &d->scratch;
    arena_reset(a);
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_cstr(&w, "kind", kinds[l->kind]);
    if (l->kind == LEASE_ROW) {
        json_put_key_bool(&w, "press", press);
        TRY_OR(done, put_row(l, solo, a, ship, &w));
    } else {
        source *section = l->owner;
        json_put_key_cstr(&w, "stream", section->name);
        if (l->losses > 0 || l->solo)
            json_put_key_bool(&w, "each", true);
        if (solo >= 0 && l->solo_deaths + 1 >= d->book.solo_limit)
            json_put_key_bool(&w, "last", true);
        if (l->kind == LEASE_IMAGES)
            TRY_OR(done, put_images(section, l, solo, ship, &w));
        else
            TRY_OR(done, put_texts(section, l, solo, a, &w));
    }
    json_end_object(&w);
    TRY_OR(done, json_writer_take(&w, out, out_size));
done:
    json_writer_done(&w);
    return st;
}
