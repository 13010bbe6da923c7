/* SPDX-License-Identifier: Apache-2.0 */
/* conversations.h: which images of a data set are clips, that is, video files or folders of frames,
 * and the names of the frames. Folders are listed once, when the data set is opened. No picture is
 * read. */
#ifndef TESSERA_PREPD_DATASET_ADAPTERS_CONVERSATIONS_H
#define TESSERA_PREPD_DATASET_ADAPTERS_CONVERSATIONS_H

#include "common/base/hash.h"
#include "common/model_folder/safetensors.h"
#include "prepd/dataset/adapters/chat_record.h"
#include "prepd/dataset/cache_file.h"
#include "prepd/dataset/records.h"
#include "prepd/dataset/tables.h"

typedef struct clip_entry {
    enum { ENTRY_UNKNOWN, ENTRY_IMAGE, ENTRY_VIDEO, ENTRY_FRAMES } kind;
    double fps;          /* of a folder of frames, in frames a second */
    int64_t first_frame; /* position in clip_table.frames */
    int32_t n_frames;
} clip_entry;

typedef struct clip_table {
    clip_entry *of; /* [count] by the image's number */
    int64_t count, capacity;
    name_list frames;
    int64_t max_frames; /* video.input_frames; set by the caller */
    bool any;           /* at least one image is a clip */
    bool videos;        /* at least one is a video file */
} clip_table;

/* Notes that image `index` is shown as `item`. Numbers come in order, with repeats; `root` and
 * `name` give the path of the image. ST_BAD_INPUT, with `source` before it, if the image was shown
 * as something else before; if a folder of frames has no rate, no pictures or too many; or if a
 * file has a rate. An image that is refused when it first comes stays unknown, and its number may
 * come again. */
WARN_UNUSED status clip_table_note(clip_table *table, int64_t index, const char *root,
                                   const char *name, const chat_item *item, const char *source);

/* Adds to a place what kind of image it is. */
void clip_table_place(const clip_table *table, int64_t index, image_place *out);
/* The name of frame `at` inside folder `index`. */
const char *clip_table_frame(const clip_table *table, int64_t index, int32_t at);
void clip_table_done(clip_table *table);

/* What the adapter of conversation files keeps in memory: the place of each record
 * and the numbers of its images. Texts are read again from their place when they are wanted.
 * Internal to conversations.c and chat_cache.c. */

typedef struct conversation {
    record_place at;
    int32_t n_images;
    int64_t first_image; /* position in conversations.shown */
    int64_t cause;       /* offset in conversations.causes; 0 for a usable record */
} conversation;

typedef struct conversations {
    dataset base;
    record_files *files;
    bool random; /* any record can be read at any time */
    chat_rules rules;
    char *root;        /* absolute path of the folder of the images */
    int64_t limit;     /* data.limit; 0: none */
    conversation *all; /* [count] */
    int64_t count, capacity;
    int32_t
        *shown; /* [n_shown] numbers of the images; those of a sample stand together, in order */
    int64_t n_shown, shown_capacity;
    name_list images;
    clip_table clips;
    bool clip_refused; /* a record was refused for what lies in a folder, which may change */
    text_pool causes;
    hash128 *contents; /* [files] digest of each file's bytes; NULL until they are read */
    hash128 identity;
} conversations;

/* conversations.c: computes the identity from everything else. Reads the files for `contents`
 * unless that is there. */
WARN_UNUSED status conversations_identify(conversations *set, const conf *options);

/* chat_cache.c keeps places and images for the next start, so that records need not be parsed
 * again.
 *
 * chat_cache_load returns true if it filled `set`. It returns false, and leaves `set` as it was, if
 * nothing is kept, if a file has another path, size or time of change, or if a folder of frames has
 * other pictures in it now. */
bool chat_cache_load(conversations *set, const conf *options);
/* Takes the lock under which the caller loads, or else reads and saves: see kept_enter. */
void chat_cache_enter(const conversations *set, const conf *options, cache_lock *out);
/* Saves if the files are large enough. A failure is logged and costs only time. */
void chat_cache_save(const conversations *set, const conf *options);
/* The part of loading that follows once key and sum are right: it checks every entry against the
 * files and against the other entries. It is public for the fuzzer, which cannot forge a sum. */
WARN_UNUSED status chat_cache_take(conversations *set, const st_file *file, const char *path);

#endif
