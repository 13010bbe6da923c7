/* SPDX-License-Identifier: Apache-2.0 */
/* conversations.c: the adapter of conversation files, with or without videos: LLaVA, ShareGPT and
 * messages, as one array or as a record per line (chat_record.h).
 *
 * Opening reads every record once, checks it and notes its place and its images; a bad record is
 * noted with its cause. Texts are read again from their place when they are wanted. */
#include "prepd/dataset/adapters/conversations.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/file.h"
#include "common/base/utf8.h"

static const conversations *as_chat(const dataset *set)
{
    return (const conversations *)set;
}

static void chat_close(dataset *base)
{
    conversations *set = (conversations *)base;
    if (!set)
        return;
    records_close(&set->files);
    name_list_done(&set->images);
    clip_table_done(&set->clips);
    text_pool_done(&set->causes);
    free(set->contents);
    free(set->root);
    free(set->all);
    free(set->shown);
    free(set);
}

static void place_text(const conversations *set, const record_place *at, char out[320])
{
    snprintf(out, 320, "%.250s:%" PRId64, records_name(set->files, at->file), at->line);
}

/* The name of an image relative to the root; an absolute name must lie below the root. */
static status find_name(const conversations *set, const char *name, const char *source,
                        const char **out)
{
    size_t length = strlen(set->root);
    while (length > 0 &&
           set->root[length - 1] == '/') /* the user may have written slashes at its end */
        length--;
    if (name[0] == '/' && strncmp(name, set->root, length) == 0 && name[length] == '/')
        name += length + 1;
    while (strncmp(name, "./", 2) == 0)
        name += 2;
    if (!path_stays_inside(name))
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "image \"%.200s\" lies outside the folder of images (data.images, or else the "
            "folder of data.path)",
            name);
    *out = name;
    return ST_OK;
}

static status add_images(conversations *set, const chat_record *record, const char *source,
                         conversation *talk)
{
    talk->first_image = set->n_shown;
    for (int32_t i = 0; i < record->n_images; i++) {
        const char *name;
        TRY(find_name(set, record->images[i].name, source, &name));
        const int64_t known = name_list_find(&set->images, name, strlen(name));
        const status st = clip_table_note(&set->clips, known < 0 ? set->images.count : known,
                                          set->root, name, &record->images[i], source);
        set->clip_refused |= st != ST_OK;
        TRY(st); /* only an image that is not refused gets a number */
        TRY(array_room((void **)&set->shown, set->n_shown, &set->shown_capacity,
                       sizeof *set->shown));
        TRY(name_list_add(&set->images, name, strlen(name), &set->shown[set->n_shown]));
        set->n_shown++;
    }
    talk->n_images = record->n_images;
    return ST_OK;
}

static status on_record(void *user, const json_value *value, const record_place *at,
                        const char *cause)
{
    conversations *set = (conversations *)user;
    conversation talk = {.at = *at};
    chat_record record;
    arena memory;
    char source[320];
    status st = ST_OK;
    if (set->limit && set->count >= set->limit)
        return FAIL(ST_END, "data.limit");
    TRY(array_room((void **)&set->all, set->count, &set->capacity, sizeof *set->all));
    if (cause) {
        TRY(text_pool_format(&set->causes, &talk.cause, "%s", cause));
        set->all[set->count++] = talk;
        return ST_OK;
    }
    place_text(set, at, source);
    arena_init(&memory, 0);
    const int64_t shown_before = set->n_shown;
    st = chat_record_read(value, &set->rules, source, &memory, &record);
    if (st == ST_OK)
        st = add_images(set, &record, source, &talk);
    if (st == ST_BAD_INPUT) {
        talk.n_images = 0;
        set->n_shown = shown_before;
        st = text_pool_format(&set->causes, &talk.cause, "%s", status_text());
    }
    arena_done(&memory);
    TRY(st);
    set->all[set->count++] = talk;
    return ST_OK;
}

/* Reads every file twice from its beginning to its end: for its records and for its digest. */
static status read_all(conversations *set, const conf *options)
{
    TRY(records_scan(set->files, on_record, set));
    if (set->count == 0)
        return FAIL_IN(ST_BAD_INPUT, options->data_path, "it holds no record");
    name_list_seal(&set->images);
    TRY(conversations_identify(set, options));
    chat_cache_save(set, options);
    return ST_OK;
}

static status chat_open(const conf *options, dataset **out)
{
    status st;
    if (options->data_group == GROUP_CONVERSATION)
        return FAIL(ST_CONFIG, "data.group conversation works only with data.format vqav2, because "
                               "these records are conversations already: use none or shared_image");
    conversations *set = (conversations *)calloc(1, sizeof *set);
    if (!set)
        return FAIL(ST_NO_MEMORY, "no memory for a data set");
    set->base.adapter = &dataset_conversations;
    set->limit = options->data_limit;
    set->clips.max_frames = options->video_input_frames;
    TRY_OR(failed, chat_rules_of(options, &set->rules));
    TRY_OR(failed, records_open(options, &set->files));
    set->root = strdup(options->data_images[0] ? options->data_images : records_folder(set->files));
    if (!set->root) {
        st = FAIL(ST_NO_MEMORY, "no memory for a path");
        goto failed;
    }
    cache_lock lock = {0};
    chat_cache_enter(set, options, &lock);
    st = chat_cache_load(set, options) ? ST_OK : read_all(set, options);
    cache_lock_leave(&lock);
    TRY_OR(failed, st);
    set->random = records_random(set->files);
    *out = &set->base;
    return ST_OK;
failed:
    chat_close(&set->base);
    return st;
}

static int64_t chat_samples(const dataset *set)
{
    return as_chat(set)->count;
}

static int64_t chat_images(const dataset *set)
{
    return as_chat(set)->images.count;
}

static const char *chat_image_path(const dataset *set, int64_t index)
{
    return name_list_at(&as_chat(set)->images, index);
}

static void chat_place(const dataset *set, int64_t index, image_place *out)
{
    snprintf(out->path, sizeof out->path, "%s", chat_image_path(set, index));
    clip_table_place(&as_chat(set)->clips, index, out);
}

static const char *chat_frame(const dataset *set, int64_t index, int32_t at)
{
    return clip_table_frame(&as_chat(set)->clips, index, at);
}

static bool chat_videos(const dataset *set)
{
    return as_chat(set)->clips.videos;
}

static const char *chat_root(const dataset *set)
{
    return as_chat(set)->root;
}

static int64_t chat_chunk(const dataset *set, int64_t index)
{
    const conversations *talks = as_chat(set);
    return talks->random ? -1 : records_chunk(talks->files, &talks->all[index].at);
}

static hash128 chat_identity(const dataset *set)
{
    return as_chat(set)->identity;
}

static status chat_outline(const dataset *base, int64_t index, arena *memory, sample *out)
{
    const conversations *set = as_chat(base);
    char text[320], *name;
    if (index < 0 || index >= set->count)
        return FAIL(ST_BAD_INPUT, "sample %" PRId64 " of %" PRId64, index, set->count);
    const conversation *talk = &set->all[index];
    place_text(set, &talk->at, text);
    TRY(arena_strndup(memory, text, strlen(text), &name));
    *out = (sample){
        .id = (uint64_t)index,
        .name = name,
        .cause = talk->cause ? text_pool_at(&set->causes, talk->cause) : NULL,
        .images = set->shown ? set->shown + talk->first_image : NULL,
        .n_images = talk->n_images,
        .text_bytes = talk->at.bytes,
    };
    return ST_OK;
}

static status chat_get(const dataset *base, int64_t index, arena *memory, sample *out)
{
    const conversations *set = as_chat(base);
    sample smp;
    json_value *value = NULL;
    chat_record record;
    TRY(chat_outline(base, index, memory, &smp));
    if (!smp.cause) {
        TRY(records_read(set->files, &set->all[index].at, &value));
        status st = chat_record_read(value, &set->rules, smp.name, memory, &record);
        json_free(&value);
        TRY(st);
        if (record.n_images != smp.n_images)
            return FAIL_IN(ST_BAD_INPUT, smp.name,
                           "the record changed while it was in use: start again");
        smp.turns = record.turns;
        smp.n_turns = record.n_turns;
    }
    *out = smp;
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
