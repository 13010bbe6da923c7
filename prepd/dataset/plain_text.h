/* plain_text.h: inside of the adapter of plain text: a place per document. */
#ifndef TESSERA_PREPD_DATASET_PLAIN_TEXT_H
#define TESSERA_PREPD_DATASET_PLAIN_TEXT_H

#include "common/model_folder/safetensors.h"
#include "prepd/dataset/cache_lock.h"
#include "prepd/dataset/dataset.h"
#include "prepd/dataset/records.h"
#include "prepd/dataset/tables.h"

typedef struct text_document {
    record_place at;
    int64_t cause; /* in causes; 0 = usable */
} text_document;

typedef struct texts {
    dataset base;
    record_files *files;
    text_document *all;
    int64_t n, capacity, limit;
    text_pool causes;
    bool random;
    hash128 identity;
} texts;

/* plain_text_cache.c: places, restart points and identity of the last start, kept beside the index,
 * so that terabytes need not be unpacked to begin. Load: false, and nothing is changed, where there
 * are none, or of other files (path, size, time of change). Save: what fails costs time only. */
bool text_cache_load(texts *d, const conf *c);
/* Before load and until what was read instead is saved: see kept_enter. */
void text_cache_enter(const texts *d, const conf *c, cache_lock *out);
void text_cache_save(const texts *d, const conf *c);
/* Of load, what is done once key and sum are right: every entry is checked against the files and
 * the others. Apart for the fuzzer, who cannot make a sum. */
WARN_UNUSED status text_cache_take(texts *d, const st_file *f, const char *path);

#endif
