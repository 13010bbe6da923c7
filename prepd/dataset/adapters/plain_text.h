/* SPDX-License-Identifier: Apache-2.0 */
/* plain_text.h: what the adapter of plain text keeps in memory: the place of each document.
 * Internal to plain_text.c and text_cache.c. */
#ifndef TESSERA_PREPD_DATASET_ADAPTERS_PLAIN_TEXT_H
#define TESSERA_PREPD_DATASET_ADAPTERS_PLAIN_TEXT_H

#include "common/model_folder/safetensors.h"
#include "prepd/dataset/cache_file.h"
#include "prepd/dataset/dataset.h"
#include "prepd/dataset/records.h"
#include "prepd/dataset/tables.h"

typedef struct text_document {
    record_place at;
    int64_t cause; /* offset in texts.causes; 0 for a usable document */
} text_document;

typedef struct texts {
    dataset base;
    record_files *files;
    text_document *all; /* [count] */
    int64_t count, capacity;
    int64_t limit; /* data.limit; 0: none */
    text_pool causes;
    bool random; /* any document can be read at any time */
    hash128 identity;
} texts;

/* text_cache.c keeps places, restart points and identity beside the index for the next start,
 * so that terabytes need not be unpacked before the first row.
 *
 * text_cache_load returns true if it filled `set`. It returns false, and leaves `set` as it was, if
 * nothing is kept or a file has another path, size or time of change. */
bool text_cache_load(texts *set, const conf *options);
/* Takes the lock under which the caller loads, or else reads and saves: see kept_enter. */
void text_cache_enter(const texts *set, const conf *options, cache_lock *out);
/* Saves if the files are large enough. A failure is logged and costs only time. */
void text_cache_save(const texts *set, const conf *options);
/* The part of loading that follows once key and sum are right: it checks every entry against the
 * files and against the other entries. It is public for the fuzzer, which cannot forge a sum. */
WARN_UNUSED status text_cache_take(texts *set, const st_file *file, const char *path);

#endif
