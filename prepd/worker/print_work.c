/* SPDX-License-Identifier: Apache-2.0 */
/* print_work.c: does the built-in leases and hashes what comes of them. Files come with the lease,
 * as with data.ship. */
#include "prepd/worker/row_prints.h"

#include <stdlib.h>
#include <string.h>

static const char SOURCE[] = "built-in lease";

static status pass_item(void *user, int64_t item)
{
    (void)user, (void)item;
    return ST_OK;
}

/* --- files --- */

static void put_shipped(print_work *work, const print_file *file)
{
    const int count = file->n_frames ? file->n_frames : 1;
    const int64_t first = (int64_t)wire_msg_parts(work->files) - count;
    json_begin_key_array(&work->listed, "shipped");
    for (int i = 0; i < count; i++) {
        json_begin_object(&work->listed);
        json_put_key_int(&work->listed, "part", first + i);
        json_put_key_int(&work->listed, "size", (int64_t)file->from[i].size + file->piece);
        json_put_key_int(&work->listed, "mtime", 0);
        json_end_object(&work->listed);
    }
    json_end_array(&work->listed);
}

static void begin_files(print_work *work)
{
    static const char nothing[1] = "";
    wire_msg_clear(work->files);
    json_writer_init(&work->listed);
    json_begin_array(&work->listed);
    for (int i = 0; i < 2; i++) { /* header and JSON, whose places the files come after */
        const status st = wire_msg_add(work->files, nothing, 0);
        (void)st; /* found when a file is not among the parts */
    }
}

status print_add_file(print_work *work, const print_file *file)
{
    json_writer *out = &work->listed;
    const int count = file->n_frames ? file->n_frames : 1;
    for (int i = 0; i < count; i++)
        TRY(wire_msg_add(work->files, file->from[i].bytes, file->from[i].size));
    json_begin_object(out);
    json_put_key_cstr(out, "path", file->n_frames ? "frames" : file->from->name);
    if (file->piece) {
        json_put_key_cstr(out, "in", "all.tar");
        json_put_key_int(out, "at", file->piece);
    }
    if (!file->n_frames)
        json_put_key_int(out, "bytes", (int64_t)file->from->size);
    if (file->height && !file->frames) {
        json_put_key_int(out, "height", file->height);
        json_put_key_int(out, "width", file->width);
    }
    if (file->video)
        json_put_key_bool(out, "video", true);
    if (file->n_frames) {
        json_put_key_real(out, "fps", file->fps);
        json_begin_key_array(out, "frames");
        for (int i = 0; i < count; i++)
            json_put_cstr(out, file->from[i].name);
        json_end_array(out);
    }
    put_shipped(work, file);
    json_end_object(out);
    return ST_OK;
}

/* --- leases of the index --- */

/* Ends the writer's text with a brace and parses it. */
static status parse_lease(json_writer *writer, json_value **out)
{
    char *text = NULL;
    size_t size;
    json_end_object(writer);
    TRY(json_writer_take(writer, &text, &size));
    const status st = json_parse(text, size, SOURCE, out);
    free(text);
    return st;
}

/* Moves a list that is complete but for its bracket into the lease. */
static status put_list(json_writer *lease, const char *key, json_writer *list)
{
    char *text = NULL;
    size_t size;
    json_end_array(list);
    TRY(json_writer_take(list, &text, &size));
    json_put_key_raw(lease, key, text, size);
    free(text);
    return ST_OK;
}

static void begin_lease(json_writer *lease, const char *kind)
{
    json_writer_init(lease);
    json_begin_object(lease);
    json_put_key_cstr(lease, "kind", kind);
    json_put_key_cstr(lease, "stream", "train");
    json_put_key_cstr(lease, "root", "/");
}

/* Does an index lease. Its records become *out, which the caller frees, and enter the hash. A cause
 * is a text of a library and does not enter. */
static status do_records(print_work *work, const json_value *lease, json_value **out)
{
    char *text = NULL;
    work->shop.parts = work->files;
    TRY(make_records(&work->shop, lease, pass_item, NULL, &text));
    status st = json_parse(text, strlen(text), SOURCE, out);
    free(text);
    TRY(st);
    const json_value *records = json_find(*out, "records");
    for (size_t i = 0; i < json_count(records); i++) {
        const json_value *record = json_item(records, i);
        static const char *const members[] = {"bytes",   "width",  "height", "frames",     "tokens",
                                              "targets", "agrees", "head",   "first_label"};
        for (size_t k = 0; k < sizeof members / sizeof *members; k++)
            hasher_add_u64(work->hash, (uint64_t)json_int(json_find(record, members[k]), -1));
    }
    return ST_OK;
}

status print_measure_file(print_work *work, print_file *file)
{
    json_writer lease;
    json_value *value = NULL, *found = NULL;
    status st;
    begin_lease(&lease, "images");
    begin_files(work);
    TRY_OR(done, print_add_file(work, file));
    TRY_OR(done, put_list(&lease, "files", &work->listed));
    json_put_key_raw(&lease, "images", "[0]", 3);
    TRY_OR(done, parse_lease(&lease, &value));
    TRY_OR(done, do_records(work, value, &found));
    const json_value *record = json_item(json_find(found, "records"), 0);
    file->height = json_int(json_find(record, "height"), 0);
    file->width = json_int(json_find(record, "width"), 0);
    file->frames = json_int(json_find(record, "frames"), 0);
    if (file->video)
        file->fps = json_real(json_find(record, "fps"), 0);
done:
    json_writer_done(&work->listed);
    json_writer_done(&lease);
    json_free(&value);
    json_free(&found);
    return st;
}

static void put_sample(json_writer *lease, const print_text *text, int place)
{
    json_begin_object(lease);
    json_put_key_int(lease, "id", place);
    json_put_key_int(lease, "images", text->n_images);
    if (text->plain)
        json_put_key_bool(lease, "plain", true);
    json_put_key_raw(lease, "turns", text->turns, strlen(text->turns));
    if (text->clip) {
        json_begin_key_array(lease, "clips");
        json_put_raw(lease, text->clip, strlen(text->clip));
        json_end_array(lease);
    }
    if (place > 0)
        json_put_key_int(lease, "after", place - 1);
    json_end_object(lease);
}

status print_measure_texts(print_work *work, print_text *texts, int n_texts)
{
    json_writer lease;
    json_value *value = NULL, *found = NULL;
    status st;
    begin_lease(&lease, "texts");
    json_begin_key_array(&lease, "samples");
    for (int i = 0; i < n_texts; i++)
        put_sample(&lease, &texts[i], i);
    json_end_array(&lease);
    json_put_key_bool(&lease, "begins", true);
    TRY_OR(done, parse_lease(&lease, &value));
    TRY_OR(done, do_records(work, value, &found));
    for (int i = 0; i < n_texts; i++) {
        const json_value *record = json_item(json_find(found, "records"), (size_t)i);
        texts[i].tokens = json_int(json_find(record, "tokens"), 0);
        texts[i].agrees = json_int(json_find(record, "agrees"), 0);
        texts[i].head = json_int(json_find(record, "head"), 0);
        texts[i].first_label = json_int(json_find(record, "first_label"), 0);
    }
done:
    json_writer_done(&lease);
    json_free(&value);
    json_free(&found);
    return st;
}

/* --- row leases --- */

void print_begin_row(print_work *work)
{
    begin_files(work);
    json_writer_init(&work->docs);
    json_begin_array(&work->docs);
}

void print_add_doc(print_work *work, const print_doc *doc)
{
    json_writer *out = &work->docs;
    json_begin_object(out);
    json_put_key_int(out, "id", doc->id);
    json_put_key_int(out, "part", doc->part);
    json_put_key_int(out, "tokens", doc->tokens);
    if (doc->whole) {
        json_put_key_int(out, "from", doc->from);
        json_put_key_int(out, "whole", doc->whole);
    }
    if (doc->prefix)
        json_put_key_int(out, "prefix", doc->prefix);
    if (doc->before)
        json_put_key_int(out, "before", doc->before);
    if (doc->plain)
        json_put_key_bool(out, "plain", true);
    if (doc->shared)
        json_put_key_bool(out, "shared", true);
    json_put_key_bool(out, "bad", doc->bad);
    if (doc->same)
        json_put_key_bool(out, "same", true);
    else
        json_put_key_raw(out, "turns", doc->turns, strlen(doc->turns));
    json_begin_key_array(out, "images");
    for (int i = 0; i < doc->n_images; i++)
        json_put_int(out, doc->images[i]);
    json_end_array(out);
    json_begin_key_array(out, "grids");
    for (int i = 0; i < doc->n_images; i++) {
        json_begin_array(out);
        json_put_int(out, doc->grids[i].rows);
        json_put_int(out, doc->grids[i].columns);
        json_end_array(out);
    }
    json_end_array(out);
    if (doc->clip) {
        json_begin_key_array(out, "clips");
        json_put_raw(out, doc->clip, strlen(doc->clip));
        json_end_array(out);
    }
    json_end_object(out);
}

/* Makes the row and adds its digest to the hash; or that it failed, but not why. */
static status hash_row(print_work *work, const json_value *lease)
{
    wire_msg *made = NULL;
    char *failed = NULL;
    row packed;
    hash128 digest;
    status st = ST_OK;
    TRY(wire_msg_new(&made));
    work->shop.parts = work->files;
    TRY_OR(done, make_row(&work->shop, lease, pass_item, NULL, made, &failed));
    if (failed) {
        hasher_add_text(work->hash, "failed");
        goto done;
    }
    arena_reset(&work->memory);
    TRY_OR(done, codec_decode(work->shop.packer, made, SOURCE, &work->memory, &packed, NULL));
    TRY_OR(done, row_digest(&packed, &digest));
    hasher_add(work->hash, digest.bytes, sizeof digest.bytes);
done:
    free(failed);
    wire_msg_free(&made);
    return st;
}

status print_end_row(print_work *work, bool press)
{
    json_writer lease;
    json_value *value = NULL;
    status st;
    begin_lease(&lease, "row");
    json_put_key_int(&lease, "row", ++work->row);
    json_put_key_bool(&lease, "press", press);
    TRY_OR(done, put_list(&lease, "files", &work->listed));
    TRY_OR(done, put_list(&lease, "docs", &work->docs));
    TRY_OR(done, parse_lease(&lease, &value));
    TRY_OR(done, hash_row(work, value));
done:
    json_writer_done(&work->listed);
    json_writer_done(&work->docs);
    json_writer_done(&lease);
    json_free(&value);
    return st;
}
