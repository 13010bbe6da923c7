/* webdataset.c: the adapter of WebDataset tars. Consecutive members of the same key (the name up to
 * the first dot of its last part) are a sample: its images (.jpg, .jpeg, .png, .webp), its videos
 * (.mp4, .m4v, .mov, .mkv, .webm, .avi, .ts), and its texts from a .json (a record as in
 * conversations, or "caption"), a .txt or a .cls. A .json that is an array of such records makes as
 * many samples, which show the same images.
 *
 * Opening reads the headers once (web_scan.c). Workers read images from their places in the tar,
 * and texts are read again when they are wanted (web_words.c). */
#include "prepd/dataset/webdataset.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const webdataset *as_web(const dataset *set)
{
    return (const webdataset *)set;
}

static void web_close(dataset *base)
{
    webdataset *set = (webdataset *)base;
    if (!set)
        return;
    name_list_done(&set->shards);
    text_pool_done(&set->texts);
    free(set->prompt);
    free(set->samples);
    free(set->images);
    free(set->numbers);
    free(set);
}

static status web_open(const conf *options, dataset **out)
{
    status st;
    hasher *hash = NULL;
    if (options->data_group == GROUP_CONVERSATION)
        return FAIL(ST_CONFIG,
                    "data.group conversation works only with data.format vqav2: use none");
    webdataset *set = (webdataset *)calloc(1, sizeof *set);
    if (!set)
        return FAIL(ST_NO_MEMORY, "no memory for a data set");
    set->base.adapter = &dataset_webdataset;
    set->limit = options->data_limit;
    set->prompt = strdup(options->data_prompt);
    if (!set->prompt) {
        st = FAIL(ST_NO_MEMORY, "no memory for a text");
        goto done;
    }
    TRY_OR(done, chat_rules_of(options, &set->rules));
    TRY_OR(done, web_find_shards(set, options));
    TRY_OR(done, hasher_new(&hash));
    hasher_add(hash, "webdataset", 10);
    hasher_add_u64(hash, (uint64_t)options->data_loss_on);
    hasher_add_u64(hash, options->data_trim);
    hasher_add_text(hash, options->data_stage_weights);
    hasher_add_text(hash, options->data_prompt);
    TRY_OR(done, web_scan(set, hash));
    hasher_add_u64(hash, (uint64_t)set->count);
    if (set->any_video)
        hasher_add(hash, "videos",
                   6); /* so that data without videos keep the identity they always had */
    if (set->any_array)
        hasher_add(hash, "arrays", 6); /* for the same reason */
    set->identity = hasher_value(hash);
    set->numbers = (int32_t *)malloc(((size_t)set->n_images + 1) * sizeof *set->numbers);
    if (!set->numbers) {
        st = FAIL(ST_NO_MEMORY, "no memory for a data set");
        goto done;
    }
    for (int64_t j = 0; j < set->n_images; j++)
        set->numbers[j] = (int32_t)j;
    if (set->count == 0)
        st = FAIL_IN(ST_BAD_INPUT, options->data_path, "the tar files hold no sample");
done:
    hasher_free(&hash);
    if (st == ST_OK)
        *out = &set->base;
    else
        web_close(&set->base);
    return st;
}

/* --- samples --- */

static int64_t web_samples(const dataset *set)
{
    return as_web(set)->count;
}

static int64_t web_images(const dataset *set)
{
    return as_web(set)->n_images;
}

static const char *web_image_path(const dataset *set, int64_t index)
{
    return text_pool_at(&as_web(set)->texts, as_web(set)->images[index].name);
}

static void web_place(const dataset *base, int64_t index, image_place *out)
{
    const webdataset *set = as_web(base);
    const web_image *image = &set->images[index];
    snprintf(out->path, sizeof out->path, "%s", name_list_at(&set->shards, image->shard));
    out->offset = image->at.offset;
    out->bytes = image->at.bytes;
    out->video = image->video;
}

static bool web_videos(const dataset *set)
{
    return as_web(set)->any_video;
}

static const char *web_root(const dataset *set)
{
    return as_web(set)->root;
}

static hash128 web_identity(const dataset *set)
{
    return as_web(set)->identity;
}

static status web_outline(const dataset *base, int64_t index, arena *memory, sample *out)
{
    const webdataset *set = as_web(base);
    if (index < 0 || index >= set->count)
        return FAIL(ST_BAD_INPUT, "sample %" PRId64 " of %" PRId64, index, set->count);
    const web_sample *from = &set->samples[index];
    (void)memory;
    *out = (sample){
        .id = (uint64_t)index,
        .name = text_pool_at(&set->texts, from->name),
        .cause = from->cause ? text_pool_at(&set->texts, from->cause) : NULL,
        .images = set->numbers + from->first_image,
        .n_images = from->cause ? 0 : from->n_images,
        .text_bytes = from->words.bytes / (from->n_records ? from->n_records : 1),
    };
    return ST_OK;
}

static status web_get(const dataset *base, int64_t index, arena *memory, sample *out)
{
    const webdataset *set = as_web(base);
    sample smp;
    TRY(web_outline(base, index, memory, &smp));
    if (smp.cause) {
        *out = smp;
        return ST_OK;
    }
    const web_sample *from = &set->samples[index];
    char path[2 * TAR_NAME_MAX], *bytes;
    chat_record record;
    snprintf(path, sizeof path, "%s/%s", set->root, name_list_at(&set->shards, from->shard));
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(ST_NO_INPUT, path, "cannot open: %s", strerror(errno));
    status st = web_read_place(fd, path, from->words, &bytes);
    close(fd);
    TRY(st);
    st = web_read_words(set, from, bytes, (size_t)from->words.bytes, smp.name, memory, &record);
    free(bytes);
    if (st != ST_OK)
        return status_context(st, "the sample changed while it was in use: start again");
    smp.turns = record.turns;
    smp.n_turns = record.n_turns;
    *out = smp;
    return ST_OK;
}

const dataset_vtable dataset_webdataset = {
    .name = "webdataset",
    .open = web_open,
    .close = web_close,
    .samples = web_samples,
    .sample = web_get,
    .outline = web_outline,
    .images = web_images,
    .image_path = web_image_path,
    .place = web_place,
    .videos = web_videos,
    .root = web_root,
    .identity = web_identity,
};
