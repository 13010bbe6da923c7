/* conversations.h: inside of the adapter of conversation files: a place per record and the numbers
 * of its images; texts are read when they are wanted. */
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
    int64_t first_image; /* in shown */
    int64_t cause;       /* in causes; 0 = usable */
} conversation;

typedef struct conversations {
    dataset base;
    record_files *files;
    bool random; /* any record can be read at any time */
    chat_rules rules;
    char *root; /* of the images */
    int64_t limit;
    conversation *all;
    int64_t n, capacity;
    int32_t *shown; /* images of the samples, one sample's side by side and in their order */
    int64_t n_shown, shown_capacity;
    name_list images;
    clip_table clips;
    bool clip_refused; /* a record is refused for what lies in a folder, which may change */
    text_pool causes;
    hash128 *contents; /* [files] of their bytes; NULL: not read yet */
    hash128 identity;
} conversations;

/* chat_identity.c: identity, of all the rest; reads the files for contents where there is none. */
WARN_UNUSED status conversations_identify(conversations *d, const conf *c);

/* chat_cache.c: places and images of the last start, so that records need not be parsed again to
 * begin. Load: false where there are none, or they are of other files (path, size, time of
 * change), or a folder of frames has others in it now; d is then as it was. Save: a failure costs
 * only time.
 */
bool chat_cache_load(conversations *d, const conf *c);
/* Before load and until what was read instead is saved: see kept_enter. */
void chat_cache_enter(const conversations *d, const conf *c, cache_lock *out);
void chat_cache_save(const conversations *d, const conf *c);
/* The part of load that comes once key and sum are right: every entry is checked against the files
 * and the other entries. It stands apart for the fuzzer, which cannot make a sum. */
WARN_UNUSED status chat_cache_take(conversations *d, const st_file *f, const char *path);

#endif
