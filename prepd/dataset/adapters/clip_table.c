/* SPDX-License-Identifier: Apache-2.0 */
/* clip_table.c: distinguishes images, video files and folders of frames, lists the folders, and makes
 * the identity of a set of conversations. */
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
#include "prepd/dataset/adapters/conversations.h"

static bool is_picture(const char *name)
{
    const char *dot = strrchr(name, '.');
    return name[0] != '.' && dot && is_picture_ending(dot + 1);
}

static int by_number(const void *left, const void *right)
{
    return strverscmp(*(const char *const *)left, *(const char *const *)right);
}

/* The names of the pictures in a folder, sorted so that frame_2 comes before frame_10. The texts
 * lie in `names`; the caller frees the list. */
static status list_frames(const char *folder, text_pool *names, const char ***out, int64_t *out_n)
{
    DIR *dir = opendir(folder);
    int64_t *at = NULL, count = 0, capacity = 0;
    status st = ST_OK;
    if (!dir)
        return FAIL_IN(ST_BAD_INPUT, folder, "the folder of frames cannot be read: %s",
                       strerror(errno));
    for (struct dirent *entry; st == ST_OK && (entry = readdir(dir));) {
        if (!is_picture(entry->d_name))
            continue;
        st = array_room((void **)&at, count, &capacity, sizeof *at);
        if (st == ST_OK)
            st = text_pool_add(names, entry->d_name, strlen(entry->d_name), &at[count++]);
    }
    closedir(dir);
    const char **list =
        st == ST_OK ? (const char **)malloc(((size_t)count + 1) * sizeof *list) : NULL;
    if (st == ST_OK && !list)
        st = FAIL(ST_NO_MEMORY, "no memory for the names of %lld frames", (long long)count);
    for (int64_t i = 0; list && i < count; i++)
        list[i] = text_pool_at(names, at[i]);
    if (list)
        qsort(list, (size_t)count, sizeof *list, by_number);
    free(at);
    *out = list;
    *out_n = count;
    return st;
}

static status take_frames(clip_table *table, clip_entry *entry, const char *folder,
                          const char *name, const char *source)
{
    text_pool texts = {0};
    const char **list = NULL;
    int64_t count = 0;
    status st = list_frames(folder, &texts, &list, &count);
    if (st == ST_OK && (count < 1 || count > table->max_frames))
        st = FAIL_IN(ST_BAD_INPUT, source,
                     "the folder \"%.200s\" holds %lld pictures, expected 1 to %lld "
                     "(video.input_frames)",
                     name, (long long)count, (long long)table->max_frames);
    for (int64_t i = 0; st == ST_OK && i < count; i++)
        if (!utf8_valid(list[i], strlen(list[i])))
            st = FAIL_IN(
                ST_BAD_INPUT, source,
                "the folder \"%.200s\" holds a picture whose name is not UTF-8 (\"%.80s\"): "
                "rename it",
                name, list[i]);
    entry->first_frame = table->frames.count;
    entry->n_frames = (int32_t)count;
    for (int64_t i = 0; st == ST_OK && i < count; i++) {
        int64_t ignored;
        st = name_list_append(&table->frames, list[i], strlen(list[i]), &ignored);
    }
    free(list);
    text_pool_done(&texts);
    return st;
}

/* A path that does not exist counts as a file: the worker that reads it will report it. */
static bool is_folder(const char *root, const char *name, char path[PATH_MAX])
{
    return snprintf(path, PATH_MAX, "%s/%s", root, name) < PATH_MAX && file_is_folder(path);
}

static status check_rate(bool folder, const char *name, const chat_item *item, const char *source)
{
    if (folder && item->fps == 0)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "\"%.200s\" is a folder of frames without a rate: put the number of frames per "
            "second beside its name, as \"fps\"",
            name);
    if (!folder && item->fps > 0)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "\"%.200s\" is a file and has an \"fps\" beside its name, which only folders of "
            "frames may have: remove it; video.fps says how many frames are taken",
            name);
    return ST_OK;
}

status clip_table_note(clip_table *table, int64_t index, const char *root, const char *name,
                       const chat_item *item, const char *source)
{
    char path[PATH_MAX];
    if (index == table->count) {
        TRY(array_room((void **)&table->of, table->count, &table->capacity, sizeof *table->of));
        table->of[table->count++] = (clip_entry){.kind = ENTRY_UNKNOWN};
    }
    clip_entry *entry = &table->of[index];
    const bool known = entry->kind != ENTRY_UNKNOWN;
    if (known && (entry->kind != ENTRY_IMAGE) != item->video)
        return FAIL_IN(ST_BAD_INPUT, source, "\"%.200s\" is shown elsewhere as %s", name,
                       item->video ? "an image" : "a video");
    const bool folder =
        known ? entry->kind == ENTRY_FRAMES : item->video && is_folder(root, name, path);
    TRY(check_rate(folder, name, item, source));
    if (known)
        return entry->fps == item->fps
                   ? ST_OK
                   : FAIL_IN(ST_BAD_INPUT, source,
                             "\"%.200s\" is shown elsewhere with fps %g, not %g", name, entry->fps,
                             item->fps);
    clip_entry made = {.kind = folder        ? ENTRY_FRAMES
                               : item->video ? ENTRY_VIDEO
                                             : ENTRY_IMAGE,
                       .fps = item->fps};
    if (folder)
        TRY(take_frames(table, &made, path, name, source));
    table->any |= item->video;
    table->videos |= made.kind == ENTRY_VIDEO;
    table->of[index] = made;
    return ST_OK;
}

void clip_table_place(const clip_table *table, int64_t index, image_place *out)
{
    const clip_entry *entry = &table->of[index];
    out->video = entry->kind == ENTRY_VIDEO;
    out->n_frames = entry->kind == ENTRY_FRAMES ? entry->n_frames : 0;
    out->fps = entry->fps;
}

const char *clip_table_frame(const clip_table *table, int64_t index, int32_t at)
{
    return name_list_at(&table->frames, table->of[index].first_frame + at);
}

/* Adds to a digest what each image is. Adds nothing if there is no clip. */
static void clip_table_digest(const clip_table *table, hasher *hash)
{
    for (int64_t j = 0; table->any && j < table->count; j++) {
        const clip_entry *entry = &table->of[j];
        char rate[32]; /* written as text, which is the same on every machine */
        const int length = snprintf(rate, sizeof rate, "%.17g", entry->fps);
        hasher_add_u64(hash, (uint64_t)entry->kind);
        hasher_add(hash, rate, (size_t)length + 1);
        for (int32_t k = 0; k < entry->n_frames; k++) {
            const char *name = clip_table_frame(table, j, k);
            hasher_add_text(hash, name);
        }
    }
}

void clip_table_done(clip_table *table)
{
    name_list_done(&table->frames);
    free(table->of);
    *table = (clip_table){0};
}

/* The digest that identifies a set of conversations: the bytes of the
 * record files, the clips, and the options that change what a record means. */

status conversations_identify(conversations *set, const conf *options)
{
    hasher *hash = NULL;
    if (!set->contents)
        TRY(records_contents(set->files, &set->contents));
    TRY(hasher_new(&hash));
    hasher_add(hash, "conversations", 13);
    hasher_add_u64(hash, (uint64_t)set->count);
    hasher_add_u64(hash, (uint64_t)options->data_loss_on);
    hasher_add_u64(hash, options->data_trim);
    hasher_add_text(hash, options->data_stage_weights);
    clip_table_digest(&set->clips, hash);
    hasher_add_u64(hash, (uint64_t)records_count(set->files));
    hasher_add(hash, set->contents, (size_t)records_count(set->files) * sizeof *set->contents);
    set->identity = hasher_value(hash);
    hasher_free(&hash);
    return ST_OK;
}
