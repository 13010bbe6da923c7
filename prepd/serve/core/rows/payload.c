/* SPDX-License-Identifier: Apache-2.0 */
/* payload.c: what a lease says to a worker, as JSON.
 *
 * A lease says everything that the worker needs and nothing of the data set's own formats. It holds
 * texts and relative paths; pixels never come through here. The forms, each an object:
 *
 *   images  {"kind":"images","stream":S,"root":R,"files":[FILE...],"images":[number...]}
 *   texts   {"kind":"texts","stream":S,"samples":[{"id":N,"turns":[...],"clips":[CLIP...]}...]}
 *           With "begins":true the answer says how each sample begins, and "after" says with which
 *           text, if any, it is compared: the position of a sample before it in this lease, or an
 *           object like a sample. Both show the same images.
 *           both have "each":true if the lease was lost before: then ON is sent for every record;
 *           and "last":true if one more death over its one item would make that item poison
 *   row     {"kind":"row","stream":S,"root":R,"row":N,"files":[FILE...],
 *            "docs":[{"id":N,"part":P,"tokens":T,"bad":bool,"turns":[...],"images":[file...],
 *                     "grids":[[h,w]...],"clips":[CLIP...]}...]}
 *            "press":bool says whether images are compressed, where the options leave it open.
 *            In a document, "shared":true means that its images are those of the document before
 *            it; "plain":true marks a plain text; a part of a text has "from":F and "whole":W, in
 *            tokens; "same":true stands instead of turns for the text of the document before it.
 *            A prefix has "prefix":K, the number of its branches, and is otherwise like a part of
 *            its first branch's sample, with part -1. A branch has "before":B, the tokens of its
 *            prefix, "from" the same and "whole"; its images are those of the prefix, so it names
 *            neither files nor grids nor clips.
 *   FILE    {"path":P,"bytes":B,"height":H,"width":W}
 *            A piece of a file has "in":path of the file and "at":offset as well. An images lease
 *            has no sizes in pixels, and no "bytes" unless the file is a piece; a clip has no sizes
 *            in pixels. A video has "video":true. A folder of frames has "fps":R and
 *            "frames":[name...], in a row only the frames that are taken. For a worker without a
 *            data root "shipped":[...] describes the bytes that are sent along (shell.h).
 *   CLIP    one per image, in samples that show a clip: null for a still picture, otherwise
 *            {"index":[numbers of the frames that are taken...],"fps":R}
 *   turn    {"role":R,"trained":bool,"parts":["text" or number of an image of the sample...],
 *            "weights":[one per part...]}, without "weights" if all are 1
 *
 * When you add a member, read it in prepd/worker/workshop.c as well, and raise LEASE_FORM
 * (prepd/agreed/fingerprints.h): a worker of another build may work here if its lease form is the
 * daemon's (joining.c). */
#include <stdlib.h>
#include <string.h>

#include "prepd/serve/core/rows/core_rows.h"

static void put_plain(json_writer *writer, const sample *smp)
{
    if (!smp->plain)
        return;
    json_put_key_bool(writer, "plain", true);
}

static void put_turns(json_writer *writer, const sample *smp)
{
    json_begin_key_array(writer, "turns");
    for (int32_t i = 0; i < smp->n_turns; i++) {
        const turn *said = &smp->turns[i];
        json_begin_object(writer);
        json_put_key_int(writer, "role", said->role);
        json_put_key_bool(writer, "trained", said->trained);
        if (said->weights) {
            json_begin_key_array(writer, "weights");
            for (int32_t j = 0; j < said->n_parts; j++)
                json_put_real(writer, (double)said->weights[j]);
            json_end_array(writer);
        }
        json_begin_key_array(writer, "parts");
        for (int32_t j = 0; j < said->n_parts; j++) {
            if (said->parts[j].text)
                json_put_text(writer, said->parts[j].text, (size_t)said->parts[j].text_bytes);
            else
                json_put_int(writer, said->parts[j].image);
        }
        json_end_array(writer);
        json_end_object(writer);
    }
    json_end_array(writer);
}

/* Which frames of an image are taken. `count` is 0 for a still picture. */
typedef struct taken {
    int64_t *index; /* [count] in the arena */
    int64_t count;
    double fps;
} taken;

static status take_frames(const source *section, int64_t index, arena *memory, taken *out)
{
    index_image image;
    index_image_get(section->index, index, &image);
    *out = (taken){.fps = image.fps};
    return image.frames ? clip_choose(image.frames, image.fps, &section->clips, memory, &out->index,
                                      &out->count)
                        : ST_OK;
}

static status put_clips(const source *section, const sample *smp, arena *memory,
                        json_writer *writer)
{
    taken *got;
    bool any = false;
    TRY(arena_calloc(memory, (size_t)smp->n_images + 1, sizeof(*got), (void **)&got));
    for (int32_t k = 0; k < smp->n_images; k++) {
        TRY(take_frames(section, smp->images[k], memory, &got[k]));
        any |= got[k].count > 0;
    }
    if (!any)
        return ST_OK;
    json_begin_key_array(writer, "clips");
    for (int32_t k = 0; k < smp->n_images; k++) {
        if (got[k].count == 0) {
            json_put_null(writer);
            continue;
        }
        json_begin_object(writer);
        json_begin_key_array(writer, "index");
        for (int64_t i = 0; i < got[k].count; i++)
            json_put_int(writer, got[k].index[i]);
        json_end_array(writer);
        json_put_key_real(writer, "fps", got[k].fps);
        json_end_object(writer);
    }
    json_end_array(writer);
    return ST_OK;
}

/* got: the frames that are taken; NULL for all. */
static void put_frames(const dataset *set, int64_t index, const image_place *place,
                       const taken *got, json_writer *writer)
{
    json_put_key_real(writer, "fps", place->fps);
    json_begin_key_array(writer, "frames");
    for (int64_t i = 0; i < (got ? got->count : place->n_frames); i++)
        json_put_cstr(writer, set->adapter->frame(set, index, (int32_t)(got ? got->index[i] : i)));
    json_end_array(writer);
}

/* known: the image's index record, or NULL if it is not indexed yet. `got`: as in put_frames. ship:
 * receives the file's bytes, or NULL if the worker has the file. */
static status put_file(const source *section, int64_t index, const index_image *known,
                       const taken *got, wire_msg *ship, json_writer *writer)
{
    const dataset *set = section->data;
    image_place place;
    dataset_image_place(set, index, &place);
    int64_t bytes = known ? known->file_bytes : -1;
    json_begin_object(writer);
    json_put_key_cstr(writer, "path", set->adapter->image_path(set, index));
    if (place.bytes >= 0) {
        json_put_key_cstr(writer, "in", place.path);
        json_put_key_int(writer, "at", place.offset);
        bytes = place.bytes;
    }
    if (bytes >= 0)
        json_put_key_int(writer, "bytes", bytes);
    if (known && !known->frames) {
        json_put_key_int(writer, "height", known->height);
        json_put_key_int(writer, "width", known->width);
    }
    if (place.video)
        json_put_key_bool(writer, "video", true);
    if (place.n_frames)
        put_frames(set, index, &place, got, writer);
    if (ship)
        TRY(section->of->outside.ship_file(section->of->outside.shell, section, index, &place,
                                           got ? got->index : NULL,
                                           got ? got->count : place.n_frames, ship, writer));
    json_end_object(writer);
    return ST_OK;
}

static status put_images(source *section, const lease *leased, int64_t solo, wire_msg *ship,
                         json_writer *writer)
{
    const dataset *set = section->data;
    json_put_key_cstr(writer, "root", set->adapter->root(set));
    json_begin_key_array(writer, "files");
    for (int64_t i = 0; i < leased->n_items; i++)
        if (solo == LEASE_NO_ITEM || leased->item[i] == solo)
            TRY(put_file(section, leased->item[i], NULL, NULL, ship, writer));
    json_end_array(writer);
    json_begin_key_array(writer, "images");
    for (int64_t i = 0; i < leased->n_items; i++)
        if (solo == LEASE_NO_ITEM || leased->item[i] == solo)
            json_put_int(writer, leased->item[i]);
    json_end_array(writer);
    return ST_OK;
}

/* Writes the members of a sample whose text is to be encoded. */
static status put_text(const source *section, int64_t number, const sample *smp, arena *memory,
                       json_writer *writer)
{
    json_put_key_int(writer, "id", number);
    json_put_key_int(writer, "images", smp->n_images);
    put_plain(writer, smp);
    put_turns(writer, smp);
    return put_clips(section, smp, memory, writer);
}

/* Writes which text the item is compared with. A refused text is left out, since it may be one that
 * kills workers; the index then counts it as absent (index_seal). */
static status put_after(const source *section, const lease *leased, int64_t solo, int64_t item,
                        arena *memory, json_writer *writer)
{
    const int64_t before = item - predecessors_back(section->build.before, item);
    index_sample record;
    sample smp;
    if (before == item)
        return ST_OK;
    if (index_has_sample(section->index, before)) {
        index_sample_get(section->index, before, &record);
        if (record.cause)
            return ST_OK;
    }
    for (int64_t k = 0; solo == LEASE_NO_ITEM && leased->item[k] != item; k++)
        if (leased->item[k] == before) {
            json_put_key_int(writer, "after", k);
            return ST_OK;
        }
    TRY(section->data->adapter->sample(section->data, before, memory, &smp));
    json_begin_key_object(writer, "after");
    TRY(put_text(section, before, &smp, memory, writer));
    json_end_object(writer);
    return ST_OK;
}

static status put_texts(source *section, const lease *leased, int64_t solo, arena *memory,
                        json_writer *writer)
{
    json_begin_key_array(writer, "samples");
    for (int64_t i = 0; i < leased->n_items; i++) {
        sample smp;
        if (solo != LEASE_NO_ITEM && leased->item[i] != solo)
            continue;
        TRY(section->data->adapter->sample(section->data, leased->item[i], memory, &smp));
        json_begin_object(writer);
        TRY(put_text(section, leased->item[i], &smp, memory, writer));
        if (section->build.before)
            TRY(put_after(section, leased, solo, leased->item[i], memory, writer));
        json_end_object(writer);
    }
    json_end_array(writer);
    json_put_key_bool(writer, "begins", section->build.before != NULL);
    return ST_OK;
}

/* The distinct image files of a row, in order of first appearance. */
typedef struct file_set {
    int32_t *image; /* [count] numbers in the data set */
    int64_t count;
} file_set;

static int64_t file_number(file_set *sent, int32_t image)
{
    for (int64_t i = sent->count - 1; i >= 0; i--)
        if (sent->image[i] == image)
            return i;
    sent->image[sent->count] = image;
    return sent->count++;
}

/* *out_sent: whether all files were sent that are to be. */
static status put_files(const source *section, const file_set *sent, arena *memory, wire_msg *ship,
                        json_writer *writer, bool *out_sent)
{
    const size_t before = ship ? wire_msg_parts(ship) : 0;
    size_t wanted = 0;
    json_begin_key_array(writer, "files");
    for (int64_t i = 0; i < sent->count; i++) {
        index_image image;
        image_place place;
        taken got;
        index_image_get(section->index, sent->image[i], &image);
        TRY(take_frames(section, sent->image[i], memory, &got));
        TRY(put_file(section, sent->image[i], &image, &got, ship, writer));
        dataset_image_place(section->data, sent->image[i], &place);
        wanted += place.n_frames ? (size_t)got.count : 1;
    }
    *out_sent = !ship || wire_msg_parts(ship) - before == wanted;
    json_end_array(writer);
    return ST_OK;
}

/* Writes the images of a document: its files, and what each of them becomes. */
static status put_doc_images(const source *section, const planned_doc *doc, const sample *smp,
                             file_set *files, arena *memory, json_writer *writer)
{
    json_begin_key_array(writer, "images");
    for (int32_t k = 0; k < smp->n_images; k++)
        json_put_int(writer, file_number(files, smp->images[k]));
    json_end_array(writer);
    json_begin_key_array(writer, "grids");
    for (int32_t k = 0; k < doc->n_images; k++) {
        json_begin_array(writer);
        json_put_int(writer, doc->grids[k].rows);
        json_put_int(writer, doc->grids[k].columns);
        json_end_array(writer);
    }
    json_end_array(writer);
    return put_clips(section, smp, memory, writer);
}

/* Whether a document's labels, or a prefix's pictures, do not count. Those of a prefix are wanted
 * as long as one of its branches is. */
static bool is_bad(const consumer_seat *consumer, const planned_doc *doc)
{
    if (doc->prefix == 0)
        return blank_cause(consumer, doc->sample) != NULL;
    for (int32_t i = 1; i <= doc->prefix; i++)
        if (!blank_cause(consumer, doc[i].sample))
            return false;
    return true;
}

/* same: the document is of the sample whose text was written just before it. */
static status put_doc(const consumer_seat *consumer, const planned_doc *doc, bool bad, bool same,
                      const sample *smp, file_set *files, arena *memory, json_writer *writer)
{
    status st = ST_OK;
    json_begin_object(writer);
    json_put_key_int(writer, "id", doc->sample);
    json_put_key_int(writer, "part", doc->part);
    json_put_key_int(writer, "tokens", doc->tokens);
    if (doc->tokens != doc->whole) {
        json_put_key_int(writer, "from", doc->from);
        json_put_key_int(writer, "whole", doc->whole);
    }
    if (doc->prefix)
        json_put_key_int(writer, "prefix", doc->prefix);
    if (doc->before)
        json_put_key_int(writer, "before", doc->before);
    put_plain(writer, smp);
    if (doc->shared)
        json_put_key_bool(writer, "shared", true);
    json_put_key_bool(writer, "bad", bad);
    if (same) {
        json_put_key_bool(writer, "same", true);
    } else {
        put_turns(writer, smp);
    }
    if (!doc->before)
        st = put_doc_images(consumer->src, doc, smp, files, memory, writer);
    json_end_object(writer);
    return st;
}

/* Writes the documents of a row. */
static status put_docs(const consumer_seat *consumer, const planned_row *placed, file_set *files,
                       arena *memory, json_writer *writer)
{
    const source *section = consumer->src;
    sample smp = {0};
    int32_t shown = 0; /* images of the last prefix, which its branches show as well */
    for (int64_t i = 0; i < placed->n_docs; i++) {
        const planned_doc *doc = &placed->docs[i];
        /* A long text of many parts, or of a prefix and its first branch,
         * is read and written once. */
        const bool same =
            i > 0 && doc->sample == placed->docs[i - 1].sample && doc->tokens < doc->whole;
        if (!same)
            TRY(section->data->adapter->sample(section->data, doc->sample, memory, &smp));
        shown = doc->prefix ? doc->n_images : shown;
        if (smp.n_images != (doc->before ? shown : doc->n_images))
            return FAIL(ST_INTERNAL, "sample %lld has %d images, but the plan counts %d",
                        (long long)doc->sample, (int)smp.n_images,
                        (int)(doc->before ? shown : doc->n_images));
        TRY(put_doc(consumer, doc, is_bad(consumer, doc), same, &smp, files, memory, writer));
    }
    return ST_OK;
}

/* Writes the one sample of a row that is tried alone: a whole document, whatever it shares in the
 * row. Its parts, if it is a long text, are all written; a sample with pictures is written once,
 * also where a mixture has it in the row twice. A prefix is tried as its first sample, with its
 * pictures as long as one of its branches wants them. */
static status put_alone(const consumer_seat *consumer, const planned_row *placed, int64_t solo,
                        file_set *files, arena *memory, json_writer *writer)
{
    const source *section = consumer->src;
    const planned_doc *prefix = NULL;
    const int64_t id = lease_sample(solo);
    bool same = false;
    sample smp;
    TRY(section->data->adapter->sample(section->data, id, memory, &smp));
    for (int64_t i = 0; i < placed->n_docs; i++) {
        planned_doc alone = placed->docs[i];
        prefix = alone.prefix ? &placed->docs[i] : prefix;
        if (alone.sample != id || alone.prefix || (same && smp.n_images > 0))
            continue;
        const bool bad = is_bad(consumer, solo < 0 && prefix ? prefix : &placed->docs[i]);
        if (alone.before) {
            alone = *prefix;
            alone.sample = id;
            alone.tokens = alone.whole = placed->docs[i].whole;
            alone.part = alone.prefix = alone.from = 0;
        }
        alone.shared = false;
        TRY(put_doc(consumer, &alone, bad, same, &smp, files, memory, writer));
        same = true;
    }
    return ST_OK;
}

static status put_row(lease *leased, const planned_row *placed, int64_t solo, arena *memory,
                      wire_msg *ship, json_writer *writer)
{
    const consumer_seat *consumer = leased->owner;
    const source *section = consumer->src;
    file_set files = {0};
    int64_t most = 0;
    for (int64_t i = 0; i < placed->n_docs; i++)
        most += placed->docs[i].n_images;
    TRY(arena_calloc(memory, (size_t)most + 1, sizeof(*files.image), (void **)&files.image));
    json_put_key_cstr(writer, "stream", section->name);
    json_put_key_cstr(writer, "root", section->data->adapter->root(section->data));
    json_put_key_int(writer, "row", (int64_t)leased->row);
    json_begin_key_array(writer, "docs");
    TRY(solo == LEASE_NO_ITEM ? put_docs(consumer, placed, &files, memory, writer)
                              : put_alone(consumer, placed, solo, &files, memory, writer));
    json_end_array(writer);
    return put_files(section, &files, memory, ship, writer, &leased->all_sent);
}

/* Writes how many parts each row has with which a decider compares its own. */
static void put_compare(const lease *leased, json_writer *writer)
{
    const wire_msg *rows[2];
    const int count = doubt_rows(leased, rows);
    if (count == 0)
        return;
    json_begin_key_array(writer, "compare");
    for (int k = 0; k < count; k++)
        json_put_int(writer, (int64_t)wire_msg_parts(rows[k]));
    json_end_array(writer);
}

status payload_lease(dispatch *state, lease *leased, const planned_row *placed, bool press,
                     wire_msg *ship, char **out, size_t *out_size)
{
    static const char *const kinds[] = {"row", "images", "texts"};
    json_writer writer;
    status st = ST_OK;
    int64_t solo = lease_solo_item(leased);
    arena *memory = &state->scratch;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_cstr(&writer, "kind", kinds[leased->kind]);
    if (leased->kind == LEASE_ROW) {
        json_put_key_bool(&writer, "press", press);
        if (solo == LEASE_NO_ITEM)
            put_compare(leased, &writer);
        TRY_OR(done, put_row(leased, placed, solo, memory, ship, &writer));
    } else {
        source *section = leased->owner;
        json_put_key_cstr(&writer, "stream", section->name);
        if (leased->losses > 0 || leased->solo)
            json_put_key_bool(&writer, "each", true);
        if (solo != LEASE_NO_ITEM && leased->solo_deaths + 1 >= state->book.solo_limit)
            json_put_key_bool(&writer, "last", true);
        if (leased->kind == LEASE_IMAGES)
            TRY_OR(done, put_images(section, leased, solo, ship, &writer));
        else
            TRY_OR(done, put_texts(section, leased, solo, memory, &writer));
    }
    json_end_object(&writer);
    TRY_OR(done, json_writer_take(&writer, out, out_size));
done:
    json_writer_done(&writer);
    return st;
}
