/* conversations.h: what the adapter of conversation files keeps in memory: the place of each record
 * and the numbers of its images. Texts are read again from their place when they are wanted.
 * Internal to conversations.c, chat_cache.c and chat_identity.c. */
#ifndef TESSERA_PREPD_DATASET_CONVERSATIONS_H
#define TESSERA_PREPD_DATASET_CONVERSATIONS_H

#include "common/base/hash.h"
#include "common/model_folder/safetensors.h"
#include "prepd/dataset/cache_lock.h"
#include "prepd/dataset/chat_record.h"
#include "prepd/dataset/clip_table.h"
#include "prepd/dataset/names.h"
#include "prepd/dataset/records.h"

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

/* chat_identity.c: computes the identity from everything else. Reads the files for `contents`
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
