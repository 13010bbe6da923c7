/* source_index.c: the index file of a data section: what it depends on (its key), and whether it
 * still fits the data. */
#include <stdio.h>

#include "common/program/log.h"
#include "common/tokenizer/tokenizer.h"
#include "prepd/serve/shell.h"

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

status source_index_key(const source *section, hash128 *out)
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

status source_load_index(source *section)
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
