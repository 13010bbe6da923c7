/* conversations.c: the adapter of conversation files, with or without videos: LLaVA/ShareGPT and
 * messages, as one array or a record per line. Memory: a place and a list of images per record;
 * texts are read when they are wanted. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prepd/dataset/conversations.h"

static const conversations *as_chat(const dataset *d)
{
    return (const conversations *)d;
}

static void chat_close(dataset *base)
{
    conversations *d = (conversations *)base;
    if (!d)
        return;
    records_close(&d->files);
    name_list_done(&d->images);
    clip_table_done(&d->clips);
    text_pool_done(&d->causes);
    free(d->contents);
    free(d->root);
    free(d->all);
    free(d->shown);
    free(d);
}

static void place_text(const conversations *d, const record_place *at, char out[320])
{
    snprintf(out, 320, "%.250s:%" PRId64, records_name(d->files, at->file), at->line);
}

/* The name under the root: an absolute one must lie there. */
static status find_name(const conversations *d, const char *name, const char *source,
                        const char **out)
{
    size_t n = strlen(d->root);
    while (n > 0 && d->root[n - 1] == '/') /* as somebody wrote it */
        n--;
    if (name[0] == '/' && strncmp(name, d->root, n) == 0 && name[n] == '/')
        name += n + 1;
    while (strncmp(name, "./", 2) == 0)
        name += 2;
    if (!path_stays_inside(name))
        return FAIL_IN(ST_BAD_INPUT, source,
                       "image \"%.200s\" leaves the folder of images (data.images, else the folder "
                       "of data.path)",
                       name);
    *out = name;
    return ST_OK;
}

static status add_images(conversations *d, const chat_record *r, const char *source,
                         conversation *c)
{
    c->first_image = d->n_shown;
    for (int32_t i = 0; i < r->n_images; i++) {
        const char *name;
        TRY(find_name(d, r->images[i].name, source, &name));
        const int64_t known = name_list_find(&d->images, name, strlen(name));
        const status st = clip_table_note(&d->clips, known < 0 ? d->images.n : known, d->root, name,
                                          &r->images[i], source);
        d->clip_refused |= st != ST_OK;
        TRY(st); /* before it has a number: it may be refused */
        TRY(array_room((void **)&d->shown, d->n_shown, &d->shown_capacity, sizeof *d->shown));
        TRY(name_list_add(&d->images, name, strlen(name), &d->shown[d->n_shown]));
        d->n_shown++;
    }
    c->n_images = r->n_images;
    return ST_OK;
}

static status on_record(void *user, const json_value *v, const record_place *at, const char *cause)
{
    conversations *d = (conversations *)user;
    conversation c = {.at = *at};
    chat_record r;
    arena a;
    char source[320];
    status st = ST_OK;
    if (d->limit && d->n >= d->limit)
        return FAIL(ST_END, "data.limit");
    TRY(array_room((void **)&d->all, d->n, &d->capacity, sizeof *d->all));
    if (cause) {
        TRY(text_pool_format(&d->causes, &c.cause, "%s", cause));
        d->all[d->n++] = c;
        return ST_OK;
    }
    place_text(d, at, source);
    arena_init(&a, 0);
    const int64_t shown_before = d->n_shown;
    st = chat_record_read(v, &d->rules, source, &a, &r);
    if (st == ST_OK)
        st = add_images(d, &r, source, &c);
    if (st == ST_BAD_INPUT) {
        c.n_images = 0;
        d->n_shown = shown_before;
        st = text_pool_format(&d->causes, &c.cause, "%s", status_text());
    }
    arena_done(&a);
    TRY(st);
    d->all[d->n++] = c;
    return ST_OK;
}

/* Every file from its beginning to its end, twice: for its records and for its digest. */
static status read_all(conversations *d, const conf *c)
{
    TRY(records_scan(d->files, on_record, d));
    if (d->n == 0)
        return FAIL_IN(ST_BAD_INPUT, c->data_path, "there is no record");
    name_list_seal(&d->images);
    TRY(conversations_identify(d, c));
    chat_cache_save(d, c);
    return ST_OK;
}

static status chat_open(const conf *c, dataset **out)
{
    status st;
    if (c->data_overlong == OVERLONG_SPLIT)
        return FAIL(ST_CONFIG, "data.overlong split is for data.format text; a conversation cannot "
                               "be split: use refuse");
    if (c->data_group == GROUP_CONVERSATION)
        return FAIL(ST_CONFIG, "data.group conversation is for data.format vqav2: records are "
                               "conversations already; use none or shared_image");
    conversations *d = (conversations *)calloc(1, sizeof *d);
    if (!d)
        return FAIL(ST_NO_MEMORY, "no memory for a data set");
    d->base.v = &dataset_conversations;
    d->limit = c->data_limit;
    d->clips.max_frames = c->video_input_frames;
    TRY_OR(failed, chat_rules_of(c, &d->rules));
    TRY_OR(failed, records_open(c, &d->files));
    d->root = strdup(c->data_images[0] ? c->data_images : records_folder(d->files));
    if (!d->root) {
        st = FAIL(ST_NO_MEMORY, "no memory for a path");
        goto failed;
    }
    cache_lock lock = {0};
    chat_cache_enter(d, c, &lock);
    st = chat_cache_load(d, c) ? ST_OK : read_all(d, c);
    cache_lock_leave(&lock);
    TRY_OR(failed, st);
    d->random = records_random(d->files);
    *out = &d->base;
    return ST_OK;
failed:
    chat_close(&d->base);
    return st;
}

static int64_t chat_samples(const dataset *d)
{
    return as_chat(d)->n;
}

static int64_t chat_images(const dataset *d)
{
    return as_chat(d)->images.n;
}

static const char *chat_image_path(const dataset *d, int64_t j)
{
    return name_list_at(&as_chat(d)->images, j);
}

static void chat_place(const dataset *d, int64_t j, image_place *out)
{
    snprintf(out->path, sizeof out->path, "%s", chat_image_path(d, j));
    clip_table_place(&as_chat(d)->clips, j, out);
}

static const char *chat_frame(const dataset *d, int64_t j, int32_t k)
{
    return clip_table_frame(&as_chat(d)->clips, j, k);
}

static bool chat_videos(const dataset *d)
{
    return as_chat(d)->clips.videos;
}

static const char *chat_root(const dataset *d)
{
    return as_chat(d)->root;
}

static int64_t chat_chunk(const dataset *d, int64_t i)
{
    const conversations *x = as_chat(d);
    return x->random ? -1 : records_chunk(x->files, &x->all[i].at);
}

static hash128 chat_identity(const dataset *d)
{
    return as_chat(d)->identity;
}

static status chat_outline(const dataset *base, int64_t i, arena *a, sample *out)
{
    const conversations *d = as_chat(base);
    char text[320], *name;
    if (i < 0 || i >= d->n)
        return FAIL(ST_BAD_INPUT, "sample %" PRId64 " of %" PRId64, i, d->n);
    const conversation *c = &d->all[i];
    place_text(d, &c->at, text);
    TRY(arena_strndup(a, text, strlen(text), &name));
    *out = (sample){
        .id = (uint64_t)i,
        .name = name,
        .cause = c->cause ? text_pool_at(&d->causes, c->cause) : NULL,
        .images = d->shown ? d->shown + c->first_image : NULL,
        .n_images = c->n_images,
        .text_bytes = c->at.bytes,
    };
    return ST_OK;
}

static status chat_get(const dataset *base, int64_t i, arena *a, sample *out)
{
    const conversations *d = as_chat(base);
    sample x;
    json_value *v = NULL;
    chat_record r;
    TRY(chat_outline(base, i, a, &x));
    if (!x.cause) {
        TRY(records_read(d->files, &d->all[i].at, &v));
        status st = chat_record_read(v, &d->rules, x.name, a, &r);
        json_free(&v);
        TRY(st);
        if (r.n_images != x.n_images)
            return FAIL_IN(ST_BAD_INPUT, x.name, "changed while it was in use: start again");
        x.turns = r.turns;
        x.n_turns = r.n_turns;
    }
    *out = x;
    return ST_OK;
}

const dataset_vtable dataset_conversations = {
    .name = "conversations",
    .open = chat_open,
    .close = chat_close,
    .samples = chat_samples,
    .sample = chat_get,
    .outline = chat_outline,
    .images = chat_images,
    .image_path = chat_image_path,
    .place = chat_place,
    .frame = chat_frame,
    .videos = chat_videos,
    .root = chat_root,
    .chunk = chat_chunk,
    .identity = chat_identity,
};
