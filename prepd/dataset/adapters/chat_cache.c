/* SPDX-License-Identifier: Apache-2.0 */
/* chat_cache.c: keeps the tables of conversations.h and the restart points of their files for the
 * next start (cache_file.h). Folders of frames are listed at every start all the same, because a
 * folder can change without any sign in the files of records. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/program/log.h"
#include "prepd/dataset/adapters/conversations.h"
#include "prepd/dataset/cache_file.h"

enum {
    VERSION = 1,        /* of these tables, and of what chat_record.c accepts */
    RECORD_NUMBERS = 4, /* offset; line; bytes and file; number of images, or minus the cause */
};

/* Names the file. False if nothing is to be kept. */
static bool name_cache(const conversations *set, const conf *options, kept_name *out)
{
    hasher *hash;
    if (!kept_name_begin(options, VERSION, &hash))
        return false;
    hasher_add_text(hash, set->root);
    hasher_add_text(hash, options->data_stage_weights);
    hasher_add_u64(hash, (uint64_t)options->data_loss_on);
    hasher_add_u64(hash, options->data_trim);
    hasher_add_u64(hash, (uint64_t)options->video_input_frames);
    return kept_name_end(options, "chats", set->files, &hash, out);
}

/* --- saving: the tables as arrays --- */

typedef struct kept_chats {
    int64_t *records; /* [RECORD_NUMBERS * n] */
    int64_t *rates;   /* [images] the bits of a double: frames a second of a clip, or NO_CLIP */
    kept_points points;
} kept_chats;

static const double NO_CLIP = -1;

static status gather_records(const conversations *set, kept_chats *kept)
{
    kept->records = malloc(((size_t)set->count * RECORD_NUMBERS + 1) * sizeof *kept->records);
    kept->rates = malloc(((size_t)set->images.count + 1) * sizeof *kept->rates);
    if (!kept->records || !kept->rates)
        return FAIL(ST_NO_MEMORY, "no memory for the places of %" PRId64 " records", set->count);
    for (int64_t i = 0; i < set->count; i++) {
        const conversation *talk = &set->all[i];
        int64_t *to = kept->records + i * RECORD_NUMBERS;
        kept_put_place(&talk->at, to);
        to[3] = talk->cause ? -talk->cause : talk->n_images;
    }
    for (int64_t j = 0; j < set->images.count; j++) {
        const clip_entry *entry = &set->clips.of[j];
        const double rate = entry->kind == ENTRY_IMAGE ? NO_CLIP : entry->fps;
        memcpy(&kept->rates[j], &rate, sizeof rate);
    }
    return kept_points_of(set->files, &kept->points);
}

static status save_chats(const conversations *set, const kept_name *name)
{
    kept_chats kept = {0};
    char identity[HASH_TEXT];
    const int64_t contents = records_count(set->files) * (int64_t)sizeof *set->contents;
    status st = gather_records(set, &kept);
    hash_print(set->identity, identity);
    const st_meta words[] = {{"identity", identity}};
    if (st == ST_OK) {
        const st_tensor tensors[] = {
            kept.points.tensors[0],
            kept.points.tensors[1],
            kept_column("records", DT_I64, set->count * RECORD_NUMBERS, kept.records),
            kept_column("name_at", DT_I64, set->images.count, set->images.at),
            kept_column("rates", DT_I64, set->images.count, kept.rates),
            kept_column("shown", DT_I32, set->n_shown, set->shown),
            kept_column("names", DT_U8, (int64_t)set->images.texts.size, set->images.texts.bytes),
            kept_column("causes", DT_U8, (int64_t)set->causes.size, set->causes.bytes),
            kept_column("contents", DT_U8, contents, set->contents),
            kept.points.tensors[2],
        };
        st = kept_save(name, tensors, sizeof tensors / sizeof *tensors, words,
                       sizeof words / sizeof *words);
    }
    kept_points_done(&kept.points);
    free(kept.records);
    free(kept.rates);
    return st;
}

void chat_cache_save(const conversations *set, const conf *options)
{
    kept_name name;
    if (set->clip_refused || records_unpacked(set->files) < KEPT_WORTH_BYTES)
        return;
    if (name_cache(set, options, &name) && save_chats(set, &name) != ST_OK)
        log_info("the places of records are not kept for the next start: %s", status_text());
}

/* --- loading --- */

/* Reads the names of the images and what kind each is. Folders of frames are listed again. */
static status take_images(conversations *set, const st_file *file, const char *path)
{
    const uint8_t *rates;
    int64_t n_rates;
    TRY(kept_texts(file, path, "names", &set->images.texts));
    TRY(kept_copy(file, path, "name_at", DT_I64, -1, (void **)&set->images.at, &set->images.count));
    set->images.capacity = set->images.count;
    TRY(kept_words(file, path, "rates", 1, set->images.count, &rates, &n_rates));
    if (set->images.count > INT32_MAX)
        return kept_unfit(path);
    for (int64_t j = 0; j < set->images.count; j++) {
        const int64_t at = set->images.at[j], bits = kept_number(rates, j);
        chat_item item;
        if (at < 1 || (size_t)at >= set->images.texts.size)
            return kept_unfit(path);
        item.name = text_pool_at(&set->images.texts, at);
        memcpy(&item.fps, &bits, sizeof item.fps);
        item.video = !(item.fps < 0);
        if (!item.video)
            item.fps = 0;
        if (!path_stays_inside(item.name))
            return kept_unfit(path);
        TRY(clip_table_note(&set->clips, j, set->root, item.name, &item, path));
    }
    return ST_OK;
}

static bool is_sound(const conversations *set, const conversation *talk)
{
    if (!kept_place_is_sound(set->files, &talk->at) || talk->cause < 0 || talk->n_images < 0)
        return false;
    return (talk->cause == 0 || (size_t)talk->cause < set->causes.size) &&
           talk->first_image + talk->n_images <= set->n_shown;
}

static status take_records(conversations *set, const st_file *file, const char *path)
{
    const uint8_t *words;
    int64_t count, first = 0;
    TRY(kept_texts(file, path, "causes", &set->causes));
    TRY(kept_copy(file, path, "shown", DT_I32, -1, (void **)&set->shown, &set->n_shown));
    set->shown_capacity = set->n_shown;
    for (int64_t i = 0; i < set->n_shown; i++)
        if (set->shown[i] < 0 || set->shown[i] >= set->images.count)
            return kept_unfit(path);
    TRY(kept_words(file, path, "records", RECORD_NUMBERS, -1, &words, &count));
    set->all = malloc(((size_t)count + 1) * sizeof *set->all);
    if (!set->all)
        return FAIL(ST_NO_MEMORY, "no memory for the places of %" PRId64 " records", count);
    set->count = set->capacity = count;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = i * RECORD_NUMBERS, images = kept_number(words, at + 3);
        if (images > set->n_shown || images == INT64_MIN)
            return kept_unfit(path);
        set->all[i] = (conversation){.at = kept_get_place(words, at),
                                     .n_images = images < 0 ? 0 : (int32_t)images,
                                     .first_image = first,
                                     .cause = images < 0 ? -images : 0};
        if (!is_sound(set, &set->all[i]))
            return kept_unfit(path);
        first += set->all[i].n_images;
    }
    return count > 0 && first == set->n_shown ? ST_OK : kept_unfit(path);
}

status chat_cache_take(conversations *set, const st_file *file, const char *path)
{
    int64_t count;
    TRY(kept_copy(file, path, "contents", DT_U8, -1, (void **)&set->contents, &count));
    if (count != records_count(set->files) * (int64_t)sizeof *set->contents)
        return kept_unfit(path);
    TRY(kept_points_take(set->files, file, path));
    TRY(take_images(set, file, path));
    return take_records(set, file, path);
}

static status take_all(conversations *set, const conf *options, const st_file *file,
                       const char *path)
{
    hash128 wanted;
    TRY(kept_identity(file, path, &wanted));
    TRY(chat_cache_take(set, file, path));
    TRY(conversations_identify(set, options));
    return hash_equal(set->identity, wanted)
               ? ST_OK
               : FAIL_IN(ST_NO_INPUT, path, "folders of frames have changed since it was written");
}

/* Frees what a failed load has left, so that the records can be read instead. */
static void forget_records(conversations *set)
{
    kept_points_forget(set->files);
    free(set->all);
    free(set->shown);
    free(set->contents);
    set->all = NULL;
    set->shown = NULL;
    set->contents = NULL;
    set->count = set->capacity = set->n_shown = set->shown_capacity = 0;
    const int64_t most = set->clips.max_frames;
    name_list_done(&set->images);
    clip_table_done(&set->clips);
    set->clips.max_frames = most;
    text_pool_done(&set->causes);
}

void chat_cache_enter(const conversations *set, const conf *options, cache_lock *out)
{
    kept_name name;
    if (records_bytes(set->files) >= KEPT_WORTH_PACKED && name_cache(set, options, &name))
        kept_enter(&name, out);
}

bool chat_cache_load(conversations *set, const conf *options)
{
    kept_name name;
    st_file file;
    if (!name_cache(set, options, &name) || access(name.path, R_OK) != 0)
        return false;
    status st = kept_open(&name, &file);
    if (st == ST_OK) {
        st = take_all(set, options, &file, name.path);
        st_close(&file);
    }
    if (st == ST_OK) {
        records_adopted(set->files);
        log_info("the places of records are taken from the last start file=%s", name.path);
        return true;
    }
    log_info("the records are read again, because what was kept cannot be used: %s", status_text());
    forget_records(set);
    return false;
}
