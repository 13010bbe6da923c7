/* SPDX-License-Identifier: Apache-2.0 */
/* make_records.c: does an index lease: finds the sizes of pictures and clips, or the lengths of
 * texts. */
#include <string.h>

#include "prepd/sample/text.h"
#include "prepd/worker/clips.h"
#include "prepd/worker/worker.h"

enum { START_BYTES = 16 << 10 }; /* most JPEG headers are shorter */
static const char SOURCE[] = "lease";

/* The facts of a picture, from the start of its file if its header is there. */
static status image_facts(workshop *shop, const conf *options, const char *root,
                          const file_ref *file, file_facts *out)
{
    file_view view = {0};
    image_info info = {0};
    arena_reset(&shop->sample);
    status st = ref_start(file, root, options->image_file_bytes, START_BYTES, &shop->sample, &view);
    if (st == ST_OK && !shop->images->header_of_start(view.bytes, options, &info)) {
        st = ref_view(file, root, options->image_file_bytes, &shop->sample, &view);
        if (st == ST_OK)
            st = shop->images->header(view.bytes, file->name, options, &info);
        ref_unview(file, &view);
    }
    *out = (file_facts){.bytes = view.file_bytes,
                        .mtime_ns = view.mtime_ns,
                        .info = {.width = info.width, .height = info.height}};
    return st;
}

static void put_facts(const file_facts *facts, json_writer *writer)
{
    json_put_key_int(writer, "width", facts->info.width);
    json_put_key_int(writer, "height", facts->info.height);
    if (facts->info.frames == 0)
        return;
    json_put_key_int(writer, "frames", facts->info.frames);
    json_put_key_real(writer, "fps", facts->info.fps);
}

/* Writes the record of one file. last: the file has been tried alone as often as allowed, so a
 * failed read becomes its record and does not end the lease. */
static status file_record(workshop *shop, const conf *options, const char *root,
                          const file_ref *file, bool last, json_writer *writer)
{
    file_facts facts = {0};
    const status st = file->video || file->frames ? clips_facts(shop, options, root, file, &facts)
                                                  : image_facts(shop, options, root, file, &facts);
    if (lease_must_end(shop, st) && !(last && st == ST_IO))
        return st;
    /* With zero size and time the next start takes the file for changed and looks again. A piece
     * that its file is too short for keeps them, and is looked at again when the file changes. */
    if ((st == ST_NO_INPUT && file->at < 0) || st == ST_IO)
        facts.bytes = facts.mtime_ns = 0;
    json_begin_object(writer);
    json_put_key_int(writer, "bytes", facts.bytes);
    json_put_key_int(writer, "mtime", facts.mtime_ns);
    if (st == ST_OK) {
        put_facts(&facts, writer);
    } else {
        json_put_key_cstr(writer, "cause", lease_cause(root, status_text()));
        if (lease_is_missing(shop, st))
            json_put_key_cstr(writer, "missing", lease_cause(root, status_last()->input));
    }
    json_end_object(writer);
    return ST_OK;
}

static status image_records(workshop *shop, const json_value *lease, on_item on, void *user,
                            json_writer *writer)
{
    const json_value *files, *numbers;
    const char *root;
    const bool last = json_bool(json_find(lease, "last"), false);
    TRY(lease_root(shop, lease, &root));
    TRY(json_want_array(lease, "files", SOURCE, &files));
    TRY(json_want_array(lease, "images", SOURCE, &numbers));
    if (json_count(files) != json_count(numbers))
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there are %zu files with %zu numbers",
                       json_count(files), json_count(numbers));
    for (size_t i = 0; i < json_count(files); i++) {
        TRY(on(user, json_int(json_item(numbers, i), -1)));
        file_ref file;
        TRY(ref_read(json_item(files, i), shop->parts, &file));
        TRY(file_record(shop, lease_conf(shop, lease), root, &file, last, writer));
    }
    return ST_OK;
}

/* A text of the lease, encoded. */
typedef struct encoded {
    int64_t id;
    status st;      /* of chat_encode, if the lease goes on */
    chat_text text; /* if st is ST_OK */
} encoded;

static status encode_text(workshop *shop, const json_value *lease, const json_value *object,
                          arena *memory, on_item on, void *user, encoded *out)
{
    const int64_t n_images = json_int(json_find(object, "images"), 0);
    sample smp;
    lease_clip *clips;
    chat_visual *visuals;
    if (n_images < 0 || n_images > INT32_MAX / 8)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "a sample has %lld images, which is impossible",
                       (long long)n_images);
    TRY(lease_read_sample(object, (int32_t)n_images, memory, &smp));
    TRY(clips_read(json_find(object, "clips"), smp.n_images, memory, &clips));
    TRY(arena_calloc(memory, (size_t)n_images + 1, sizeof(*visuals), (void **)&visuals));
    for (int32_t k = 0; k < smp.n_images; k++)
        TRY(clips_visual(&clips[k], 0, memory, &visuals[k]));
    if (on)
        TRY(on(user, (int64_t)smp.id));
    *out = (encoded){.id = (int64_t)smp.id};
    out->st = chat_encode(shop->tokens, shop->token_scratch, &shop->chat, lease_conf(shop, lease),
                          &smp, visuals, memory, &out->text);
    return lease_must_end(shop, out->st) ? out->st : ST_OK;
}

/* Finds the text that sample `at` is compared with: the sample before it in the lease, which is
 * still in memory, or one that is encoded now. *out has another status than ST_OK if there is none
 * or it cannot be encoded. */
static status encode_after(workshop *shop, const json_value *lease, const json_value *after,
                           int64_t at, const encoded *last, arena *memory, encoded *out)
{
    *out = (encoded){.st = ST_NO_INPUT};
    if (!after)
        return ST_OK;
    if (json_typeof(after) == JSON_OBJECT)
        return encode_text(shop, lease, after, memory, NULL, NULL, out);
    const int64_t place = json_int(after, -1);
    const json_value *samples = json_find(lease, "samples");
    if (place < 0 || place >= at)
        return FAIL_IN(ST_PROTOCOL, SOURCE, "sample %lld of the lease comes after %lld",
                       (long long)at, (long long)place);
    if (place + 1 < at)
        return encode_text(shop, lease, json_item(samples, (size_t)place), memory, NULL, NULL, out);
    *out = *last;
    return ST_OK;
}

static status put_record(workshop *shop, const json_value *lease, const json_value *object,
                         int64_t at, const encoded *own, const encoded *last, arena *memory,
                         json_writer *writer)
{
    encoded other;
    json_begin_object(writer);
    if (own->st != ST_OK) {
        json_put_key_cstr(writer, "cause", status_text());
        json_end_object(writer);
        return ST_OK;
    }
    json_put_key_int(writer, "tokens", own->text.count);
    json_put_key_int(writer, "targets", own->text.n_targets);
    if (json_bool(json_find(lease, "begins"), false)) {
        TRY(encode_after(shop, lease, json_find(object, "after"), at, last, memory, &other));
        const text_beginning begins =
            text_compare_beginning(&own->text, other.st == ST_OK ? &other.text : NULL);
        json_put_key_int(writer, "agrees", begins.agrees);
        json_put_key_int(writer, "head", begins.head);
        json_put_key_int(writer, "first_label", begins.first_label);
    }
    json_end_object(writer);
    return ST_OK;
}

static status text_records(workshop *shop, const json_value *lease, on_item on, void *user,
                           json_writer *writer)
{
    const json_value *samples;
    encoded last = {.st = ST_NO_INPUT}, own;
    TRY(json_want_array(lease, "samples", SOURCE, &samples));
    for (size_t i = 0; i < json_count(samples); i++) {
        /* The last text stays in the other arena, since the next one is often compared with it. */
        arena *memory = i % 2 ? &shop->sample : &shop->row;
        arena_reset(memory);
        TRY(encode_text(shop, lease, json_item(samples, i), memory, on, user, &own));
        TRY(put_record(shop, lease, json_item(samples, i), (int64_t)i, &own, &last, memory,
                       writer));
        last = own;
    }
    return ST_OK;
}

status make_records(workshop *shop, const json_value *lease, on_item on, void *user, char **out)
{
    json_writer writer;
    status st;
    size_t size;
    const bool images = strcmp(json_text(json_find(lease, "kind"), ""), "images") == 0;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_begin_key_array(&writer, "records");
    st = images ? image_records(shop, lease, on, user, &writer)
                : text_records(shop, lease, on, user, &writer);
    json_end_array(&writer);
    json_end_object(&writer);
    if (st == ST_OK)
        st = json_writer_take(&writer, out, &size);
    json_writer_done(&writer);
    return st;
}
