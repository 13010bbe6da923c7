/* SPDX-License-Identifier: Apache-2.0 */
/* source.c: opens a data section: its data set, its index (from the cache, or built by the
 * workers), its identity.
 *
 * The files are opened by a thread beside the loop (struct opening), since a large data set takes
 * time and its file system may hang. Of several prepd that need the same index, one builds it and
 * the others wait for its lock. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/model_folder/model_files.h"
#include "common/program/log.h"
#include "common/tokenizer/tokenizer.h"
#include "prepd/dataset/cache_file.h"
#include "prepd/dataset/records.h"
#include "prepd/sample/chat_template.h"
#include "prepd/serve/shell.h"

/* The index file of a data section: what it depends on (its key), and whether it
 * still fits the data. */

/* The version of what the index records of the same data. Raise it when a sample that was accepted
 * is now refused, or the other way round, or when its cause, its tokens or a picture's size come
 * out differently. The libraries that read the headers are not part of the key, since no worker has
 * joined yet when it is made. */
enum { RECORDS_VERSION = 3 };

/* Adds what decides which frames of a clip are taken: their times are part of a sample's text. */
static void add_clip_options(const source *section, hasher *hash)
{
    const conf *options = &section->options;
    const clip_limits limits = section->clips;
    char fps[32];
    const int length = snprintf(fps, sizeof fps, "%.17g", limits.fps);
    hasher_add(hash, fps, (size_t)length + 1);
    hasher_add_u64(hash, (uint64_t)limits.min_frames);
    hasher_add_u64(hash, (uint64_t)limits.max_frames);
    hasher_add_u64(hash, (uint64_t)options->video_input_frames);
    hasher_add_u64(hash, (uint64_t)options->video_file_bytes);
    hasher_add_u64(hash, (uint64_t)options->video_prompt);
}

/* A hash of what index records depend on: the data set, the tokenizer and some options. A change of
 * any of them builds the index anew. */
static status source_index_key(const source *section, hash128 *out)
{
    const conf *options = &section->options;
    const hash128 data = dataset_contents(section->data);
    hash128 rules;
    hasher *hash = NULL;
    TRY(tokenizer_rules(&rules));
    TRY(hasher_new(&hash));
    hasher_add_u64(hash, RECORDS_VERSION);
    hasher_add(hash, rules.bytes, sizeof(rules.bytes));
    hasher_add(hash, data.bytes, sizeof(data.bytes));
    hasher_add(hash, section->model_digest.bytes, sizeof(section->model_digest.bytes));
    hasher_add_text(hash, options->data_system);
    hasher_add_text(hash, ""); /* in place of an option of older builds */
    hasher_add_u64(hash, options->data_label_newline);
    hasher_add_u64(hash, (uint64_t)options->image_input_pixels);
    hasher_add_u64(hash, (uint64_t)options->image_file_bytes);
    hasher_add_u64(hash, (uint64_t)options->data_group);
    hasher_add_u64(hash, (uint64_t)options->data_limit);
    hasher_add_u64(hash, (uint64_t)options->data_answer);
    add_clip_options(section, hash);
    hasher_add_u64(hash,
                   options->data_answer == ANSWER_DRAWN ? (uint64_t)options->training_seed : 0);
    *out = hasher_value(hash);
    hasher_free(&hash);
    return ST_OK;
}

/* Fails with NO_INPUT if an image has changed since it was indexed, so that the index is stale, and
 * with UNAVAILABLE if that cannot be found out now. */
static status check_images(const source *section)
{
    for (int64_t j = 0; j < index_images(section->index); j++) {
        int64_t bytes, mtime;
        index_image image;
        index_image_get(section->index, j, &image);
        dataset_image_stat(section->data, j, &bytes, &mtime);
        if (bytes < 0)
            return FAIL_IN(ST_UNAVAILABLE, section->data->adapter->image_path(section->data, j),
                           "its size cannot be found out: the disk or mount that it is on is in "
                           "trouble");
        if (bytes != image.file_bytes || mtime != image.mtime_ns) {
            log_info("index is stale: %s has changed since",
                     section->data->adapter->image_path(section->data, j));
            return ST_NO_INPUT;
        }
    }
    return ST_OK;
}

/* Loads source->index from its file. NO_INPUT if there is no file or it does not fit the data,
 * UNAVAILABLE if that cannot be found out now. */
static status source_load_index(source *section)
{
    status st = index_load(section->index_path, section->index_key, &section->index);
    if (st == ST_OK) {
        const bool alike =
            index_samples(section->index) == section->data->adapter->samples(section->data) &&
            index_images(section->index) == section->data->adapter->images(section->data);
        st = alike ? check_images(section) : ST_NO_INPUT;
        if (st == ST_OK)
            return section_mix(section);
        index_free(&section->index);
        return st;
    }
    if (st == ST_BAD_INPUT) {
        log_warn("index is built again: %s", status_text());
        st = ST_NO_INPUT;
    }
    return st;
}

enum {
    WAIT_MS = 100,    /* between two tries to take a lock that another process holds */
    LEAVE_LOOKS = 20, /* how often a daemon that stops looks whether the waiting thread has left */
};

/* A folder has splits, one of which is held out. A single file has none, nor has a folder of .txt
 * files, and such data must not be both trained on and held out. */
static status check_held_out(const conf *options)
{
    if (options->eval_path[0] || options->data_format == DATA_VQAV2 || records_have_splits(options))
        return ST_OK;
    return FAIL_IN(ST_CONFIG, options->data_path,
                   "data.path is not a folder with splits, so nothing of it is held out; name the "
                   "held-out data in eval.path");
}

static status check_template(const source *section)
{
    chat_template chat;
    TRY(chat_template_check(&section->options, &chat));
    if (chat.path[0] && !chat.releases)
        log_warn("the chat template %s is not used: conversations are written as the template of "
                 "Qwen3-VL Instruct does (model.chat_template is instruct) section=%s",
                 chat.path, section->name);
    return ST_OK;
}

/* Checks the template of a mixture, once its sources are known.
 * Plain texts alone need no template. */
static status check_mixture(const source *section)
{
    const dataset_part *parts;
    const int count =
        section->data->adapter->parts ? section->data->adapter->parts(section->data, &parts) : 0;
    bool plain = true;
    arena memory;
    arena_init(&memory, 0);
    status st = ST_OK;
    for (int k = 0; k < count && st == ST_OK; k++) {
        sample first = {.plain = true};
        if (parts[k].count > 0)
            st = section->data->adapter->outline(section->data, parts[k].first, &memory, &first);
        plain = plain && first.plain;
    }
    arena_done(&memory);
    return st == ST_OK && !plain ? check_template(section) : st;
}

/* Does everything that needs the options alone, so that their mistakes are told at once. */
static status resolve_options(const conf *options, source *section)
{
    if (section == &section->of->eval) {
        TRY(check_held_out(options));
        TRY(conf_eval(options, &section->options));
    } else {
        TRY(conf_copy(
            options,
            &section->options)); /* a copy, since a thread that hangs outlives the options */
    }
    TRY(model_files_told(&section->options));
    TRY(model_files_digest(&section->options, &section->model_digest));
    if (section->options.data_format != DATA_MIXTURE)
        TRY(check_template(section));
    TRY(conf_stream_json(options, section->model_digest, &section->stream_json));
    return clip_limits_load(&section->options, &section->clips);
}

/* Identifies the index file that lies there now, to notice when another prepd puts a new one in its
 * place. */
typedef struct file_mark {
    ino_t inode; /* 0 if there is no file */
    struct timespec changed;
} file_mark;

static file_mark mark_of(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return (file_mark){0};
    return (file_mark){info.st_ino, info.st_ctim};
}

static bool same_mark(file_mark first, file_mark second)
{
    return first.inode == second.inode && first.changed.tv_sec == second.changed.tv_sec &&
           first.changed.tv_nsec == second.changed.tv_nsec;
}

/* Opens the files of a section beside the loop. The thread owns `made` and `lock` until `done` is
 * set, and it reads the options that resolve_options gave it; the loop touches none of them. */
typedef struct opening {
    pthread_t thread;
    bool joined;     /* the thread has ended, and what it made is the section's */
    cache_lock lock; /* held on the index file while the index is built here */
    source made;
    const conf *options;
    status st;
    status_note note;         /* the thread's */
    char holder[LOCK_HOLDER]; /* the process that builds the index */
    atomic_bool waits; /* the thread waits for `holder`, which was written before this was set */
    atomic_bool leave; /* the section is no longer wanted; read while the thread waits */
    atomic_bool done;
} opening;

/* Takes the lock on the index, waiting for another process that builds it. False if no lock can be
 * taken here, or the index is no longer wanted. */
static bool lock_index(opening *start, cache_lock *out)
{
    const char *path = start->made.index_path;
    char holder[LOCK_HOLDER];
    for (;;) {
        const lock_answer answer = cache_lock_take(path, out, holder);
        if (answer == LOCK_OURS)
            return true;
        if (answer == LOCK_NONE) {
            log_info(
                "the index cannot be locked, so other daemons that start now build it as well: %s",
                status_text());
            return false;
        }
        if (!atomic_load(&start->waits)) {
            log_warn("the index is being built by %s: waiting for it section=%s file=%s", holder,
                     start->made.name, path);
            memcpy(start->holder, holder, sizeof(holder));
            atomic_store(&start->waits, true);
        }
        if (atomic_load(&start->leave))
            return false;
        usleep(WAIT_MS * 1000);
    }
}

/* Loads the index from the cache; or finds none and takes the lock, so that only one prepd builds
 * it. */
static status find_index(opening *start)
{
    source *section = &start->made;
    bool told = false;
    for (;;) {
        const file_mark seen = mark_of(section->index_path);
        const status st = source_load_index(section);
        if (st == ST_UNAVAILABLE && !atomic_load(&start->leave)) {
            if (!told)
                log_warn("waiting to use the index section=%s: %s", section->name, status_text());
            told = true;
            usleep(WAIT_MS * 1000);
            continue;
        }
        if (st == ST_OK) {
            log_info("index loaded section=%s file=%s", section->name, section->index_path);
            return ST_OK;
        }
        if (st != ST_NO_INPUT)
            log_warn("index is built again: %s", status_text());
        if (!section->index_path[0] || !lock_index(start, &start->lock) ||
            same_mark(seen, mark_of(section->index_path)))
            return ST_OK; /* it is to be built here */
        cache_lock_leave(
            &start->lock); /* it was made meanwhile; all that waited can read it at once */
    }
}

static status find_place(source *section)
{
    char folder[PATH_MAX], key[HASH_TEXT], path[PATH_MAX + HASH_TEXT + 16] = "";
    TRY(source_index_key(section, &section->index_key));
    const status found = cache_folder(&section->options, folder);
    if (found != ST_OK && section->options.prepd_cache_dir[0])
        return found;
    if (found !=
        ST_OK) /* the index is only a cache, so the daemon can do without a folder for it */
        log_warn("the index is not kept and will be built at every start: %s", status_text());
    hash_print(section->index_key, key);
    if (found == ST_OK)
        snprintf(path, sizeof(path), "%s/index-%s.tsx", folder, key);
    section->index_path = strdup(path);
    return section->index_path ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a path");
}

/* Opens the data set, which borrows start->c, and loads its index if the cache has it. It takes
 * seconds where there are millions of samples. */
static status open_files(opening *start)
{
    source *section = &start->made;
    TRY(dataset_open(start->options, &section->data));
    if (start->options->data_ship)
        TRY(ship_check(section->data));
    TRY(check_mixture(section));
    TRY(find_place(section));
    log_info("data set opened section=%s samples=%lld images=%lld", section->name,
             (long long)section->data->adapter->samples(section->data),
             (long long)section->data->adapter->images(section->data));
    return find_index(start);
}

static void *open_thread(void *user)
{
    opening *start = user;
    start->st = open_files(start);
    start->note = *status_last();
    atomic_store(&start->done, true);
    return NULL;
}

static status open_beside(source *section)
{
    opening *start = calloc(1, sizeof(*start));
    if (!start)
        return FAIL(ST_NO_MEMORY, "no memory to open a data set");
    start->options = &section->options;
    start->made = (source){.name = section->name,
                           .options = section->options,
                           .model_digest = section->model_digest,
                           .clips = section->clips};
    const int err = pthread_create(&start->thread, NULL, open_thread, start);
    if (err != 0) {
        free(start);
        return FAIL(ST_OS, "no thread to open the data set: %s", strerror(err));
    }
    section->opening = start;
    return ST_OK;
}

status source_want(shell *around, source *section)
{
    status st = resolve_options(around->options, section);
    if (st == ST_OK)
        st = open_beside(section);
    if (st != ST_OK)
        source_done(section);
    return st;
}

/* Ends the thread and takes what it made. */
static status take_over(source *section)
{
    opening *start = (opening *)section->opening;
    pthread_join(start->thread, NULL);
    start->joined = true;
    section->waits_for = NULL;
    section->data = start->made.data;
    section->index = start->made.index;
    section->index_path = start->made.index_path;
    section->index_key = start->made.index_key;
    status_set(&start->note);
    return start->st;
}

/* Whether the thread waits for another prepd, which builds the index. */
static bool waits(opening *start)
{
    return !atomic_load(&start->done) && atomic_load(&start->waits);
}

void source_advance(shell *around, source *section)
{
    opening *start = (opening *)section->opening;
    if (!start || start->joined)
        return;
    section->waits_for = waits(start) ? start->holder : NULL;
    if (!atomic_load(&start->done))
        return;
    const status st = take_over(section);
    dispatch_at(around->core, clock_ns());
    section_opened(around->core, section, st);
}

void source_keep_index(source *section)
{
    opening *start = (opening *)section->opening;
    if (section->index_path[0] &&
        index_save(section->index, section->index_path, section->index_key) != ST_OK)
        log_warn("index not kept: %s", status_text()); /* the next start has to build it again */
    cache_lock_leave(&start->lock);
}

/* Tells the thread to leave and gives it a moment. A thread that waits for the lock leaves at once;
 * one that has the lock by now may be reading. */
static void leave_lock(opening *start)
{
    atomic_store(&start->leave, true);
    for (int k = 0; k < LEAVE_LOOKS && !atomic_load(&start->done); k++)
        usleep(WAIT_MS * 1000);
}

void source_done(source *section)
{
    opening *start = (opening *)section->opening;
    if (start && waits(start))
        leave_lock(start);
    if (start && !start->joined && !atomic_load(&start->done)) {
        /* The file system hangs, and the thread with it. Both end with the process. */
        pthread_detach(start->thread);
        free(section->stream_json);
        section->stream_json = NULL;
        return; /* section->opening stays, and so must everything that the thread reads */
    }
    if (start && !start->joined && take_over(section) != ST_OK)
        log_debug("data set not opened: %s", status_text());
    if (start)
        cache_lock_leave(&start->lock);
    free(start);
    dataset *data = section->data;
    data_index *index = section->index;
    char *const texts[] = {section->index_path, section->stream_json};
    conf options = section->options;
    section_clear(section); /* its plans borrow all of these */
    index_free(&index);
    dataset_close(&data);
    free(texts[0]);
    free(texts[1]);
    conf_done(&options);
}
