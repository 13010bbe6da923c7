/* make_records.c: does an index lease: finds the sizes of pictures and clips, or the lengths of
 * texts. */
#include <string.h>

#include "prepd/worker/clips.h"
#include "prepd/worker/lease_read.h"

enum { START_BYTES = 16 << 10 }; /* most JPEG headers are shorter */
static const char SOURCE[] = "lease";

/* The facts of a picture, from the start of its file if its header is there. */
static status image_facts(workshop *s, const conf *c, const char *root, const file_ref *f,
                          file_facts *out)
{
    file_view view = {0};
    image_info info = {0};
    arena_reset(&s->sample);
    status st = ref_start(f, root, c->image_file_bytes, START_BYTES, &s->sample, &view);
    if (st == ST_OK && !s->images->header_of_start(view.bytes, c, &info)) {
        st = ref_view(f, root, c->image_file_bytes, &s->sample, &view);
        if (st == ST_OK)
            st = s->images->header(view.bytes, f->name, c, &info);
        ref_unview(f, &view);
    }
    *out = (file_facts){.bytes = view.file_bytes,
                        .mtime_ns = view.mtime_ns,
                        .info = {.width = info.width, .height = info.height}};
    return st;
}

static void put_facts(const file_facts *facts, json_writer *w)
{
    json_put_key_int(w, "width", facts->info.width);
    json_put_key_int(w, "height", facts->info.height);
    if (facts->info.frames == 0)
        return;
    json_put_key_int(w, "frames", facts->info.frames);
    json_put_key_real(w, "fps", facts->info.fps);
}

/* Writes the record of one file. last: the file has been tried alone as often as allowed, so a
 * failed read becomes its record and does not end the lease. */
static status file_record(workshop *s, const conf *c, const char *root, const file_ref *f,
                          bool last, json_writer *w)
{
    file_facts facts = {0};
    const status st = f->video || f->frames ? clips_facts(s, c, root, f, &facts)
                                            : image_facts(s, c, root, f, &facts);
    if (lease_must_end(s, st) && !(last && st == ST_IO))
        return st;
    /* With zero size and time the next start takes the file for changed and looks again. A piece
     * that its file is too short for keeps them, and is looked at again when the file changes. */
    if ((st == ST_NO_INPUT && f->at < 0) || st == ST_IO)
        facts.bytes = facts.mtime_ns = 0;
    json_begin_object(w);
    json_put_key_int(w, "bytes", facts.bytes);
    json_put_key_int(w, "mtime", facts.mtime_ns);
    if (st == ST_OK) {
        put_facts(&facts, w);
    } else {
        json_put_key_cstr(w, "cause", lease_cause(root, status_text()));
        if (lease_is_missing(s, st))
            json_put_key_cstr(w, "missing", lease_cause(root, status_last()->input));
    }
    json_end_object(w);
    return ST_OK;
}

static status image_records(workshop *s, const json_value *lease, on_item on, void *user,
                            json_writer *w)
{
    const json_value *files, *numbers;
    const char *root;
    const bool last = json_bool(json_find(lease, "last"), false);
    TRY(lease_root(s, lease, &root));
    TRY(json_want_array(lease, "files", SOURCE, &files));
    TRY(json_want_array(lease, "images", SOURCE, &numbers));
    if (json_count(files) != json_count(numbers))
        return FAIL_IN(ST_PROTOCOL, SOURCE, "there are %zu files with %zu numbers",
                       json_count(files), json_count(numbers));
    for (size_t i = 0; i < json_count(files); i++) {
        TRY(on(user, json_int(json_item(numbers, i), -1)));
        file_ref f;
        TRY(ref_read(json_item(files, i), s->parts, &f));
        TRY(file_record(s, lease_conf(s, lease), root, &f, last, w));
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
            return FAIL_IN(ST_PROTOCOL, SOURCE, "a sample has %lld images, which is impossible",
                           (long long)n_images);
        TRY(lease_read_sample(object, (int32_t)n_images, &s->row, &smp));
        TRY(clips_read(json_find(object, "clips"), smp.n_images, &s->row, &clips));
        TRY(arena_calloc(&s->row, (size_t)n_images + 1, sizeof(*visuals), (void **)&visuals));
        for (int32_t k = 0; k < smp.n_images; k++)
            TRY(clips_visual(&clips[k], 0, &s->row, &visuals[k]));
        TRY(on(user, (int64_t)smp.id));
        status st = chat_encode(s->tokens, s->token_scratch, &s->chat, lease_conf(s, lease), &smp,
                                visuals, &s->row, &text);
        if (lease_must_end(s, st))
            return st;
        json_begin_object(w);
        if (st == ST_OK) {
            json_put_key_int(w, "tokens", text.count);
            json_put_key_int(w, "targets", text.n_targets);
        } else {
            json_put_key_cstr(w, "cause", status_text());
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
    json_begin_key_array(&w, "records");
    st = images ? image_records(s, lease, on, user, &w) : text_records(s, lease, on, user, &w);
    json_end_array(&w);
    json_end_object(&w);
    if (st == ST_OK)
        st = json_writer_take(&w, out, &size);
    json_writer_done(&w);
    return st;
}
