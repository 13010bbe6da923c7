/* SPDX-License-Identifier: Apache-2.0 */
/* webdataset.c: the adapter of WebDataset tars. Consecutive members of the same key (the name up to
 * the first dot of its last part) are a sample: its images (.jpg, .jpeg, .png, .webp), its videos
 * (.mp4, .m4v, .mov, .mkv, .webm, .avi, .ts), and its texts from a .json (a record as in
 * conversations, or "caption"), a .txt or a .cls. A .json that is an array of such records makes as
 * many samples, which show the same images.
 *
 * Opening reads the headers once (web_scan.c). Workers read images from their places in the tar,
 * and texts are read again when they are wanted (webdataset.c). */
#include "prepd/dataset/adapters/webdataset.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/compare.h"
#include "common/base/file.h"
#include "common/base/utf8.h"

/* Finds the tars that data.path means. */

static status note_shard(webdataset *set, const char *name)
{
    int64_t ignored;
    if (!utf8_valid(name, strlen(name)))
        return FAIL_IN(
            ST_BAD_INPUT, name,
            "the name of the tar is not UTF-8, but the messages to workers are: rename it");
    return name_list_append(&set->shards, name, strlen(name), &ignored);
}

static status add_shard(void *user, const char *path)
{
    webdataset *set = (webdataset *)user;
    const char *under = path + strlen(set->root);
    return note_shard(set, under + (*under == '/'));
}

static status shards_of_folder(webdataset *set, const conf *options)
{
    struct dirent *entry;
    char **names = NULL;
    int64_t count = 0, capacity = 0, others = 0;
    status st = ST_OK;
    DIR *dir = opendir(set->root);
    if (!dir)
        return FAIL_IN(ST_NO_INPUT, set->root, "data.path cannot be read as a folder: %s",
                       strerror(errno));
    while ((entry = readdir(dir))) {
        const size_t size = strlen(entry->d_name);
        if (size < 5 || strcmp(entry->d_name + size - 4, ".tar") != 0)
            continue;
        if (!name_has_split(entry->d_name, size - 4, options->data_split)) {
            others++;
            continue;
        }
        TRY_OR(done, array_room((void **)&names, count, &capacity, sizeof *names));
        names[count] = strdup(entry->d_name);
        if (!names[count++]) {
            st = FAIL(ST_NO_MEMORY, "no memory for a name");
            goto done;
        }
    }
    if (count == 0)
        st = FAIL_IN(
            ST_NO_INPUT, set->root,
            "the folder holds no tar file whose name has data.split \"%s\" as a word (%" PRId64
            " others); data.path may also be one file, or a name with braces: "
            "shards/{00000..00127}.tar",
            options->data_split, others);
    else
        qsort(names, (size_t)count, sizeof *names, compare_texts);
    for (int64_t k = 0; k < count && st == ST_OK; k++)
        st = note_shard(set, names[k]);
done:
    for (int64_t k = 0; k < count; k++)
        free(names[k]);
    free(names);
    closedir(dir);
    return st;
}

/* web_scan.c: finds the tars of data.path. */
static status web_find_shards(webdataset *set, const conf *options)
{
    struct stat info;
    if (snprintf(set->root, sizeof set->root, "%s", options->data_path) >= (int)sizeof set->root)
        return FAIL_IN(ST_CONFIG, options->data_path, "data.path is too long");
    if (stat(set->root, &info) == 0 && S_ISDIR(info.st_mode))
        return shards_of_folder(set, options);
    char *brace = strchr(set->root, '{');
    if (brace)
        *brace = 0;
    char *slash = strrchr(set->root, '/');
    if (slash)
        *slash = 0;
    return braces_expand(options->data_path, add_shard, set);
}

/* Expands the first braces of a name and calls itself with the rest, one level for each
 * pair of braces. */

enum { NAME_MAX_BYTES = 4096, MAX_NAMES = 1000000, MAX_DEPTH = 8 /* pairs of braces in a name */ };

typedef struct expansion {
    const char *pattern;
    brace_each each;
    void *user;
    long count; /* names so far */
    int depth;
} expansion;

static status expand(expansion *pattern, const char *done, const char *rest);

/* Goes on with `done`, `piece` and then what `rest` expands to. */
static status with(expansion *pattern, const char *done, size_t done_bytes, const char *piece,
                   size_t piece_bytes, const char *rest)
{
    char name[NAME_MAX_BYTES];
    if (done_bytes + piece_bytes + strlen(rest) >= sizeof name)
        return FAIL_IN(ST_CONFIG, pattern->pattern, "it gives a name of more than %d bytes",
                       NAME_MAX_BYTES - 1);
    if (pattern->depth == MAX_DEPTH)
        return FAIL_IN(ST_CONFIG, pattern->pattern, "it has more than %d pairs of braces",
                       MAX_DEPTH);
    memcpy(name, done, done_bytes);
    memcpy(name + done_bytes, piece, piece_bytes);
    name[done_bytes + piece_bytes] = 0;
    pattern->depth++;
    status st = expand(pattern, name, rest);
    pattern->depth--;
    return st;
}

/* Expands a range FIRST..LAST; *out_is is false if `inner` is not one. */
static status expand_range(expansion *pattern, const char *done, const char *inner, size_t length,
                           const char *rest, bool *out_is)
{
    char text[64], *end;
    *out_is = false;
    if (length >= sizeof text)
        return ST_OK;
    memcpy(text, inner, length);
    text[length] = 0;
    const char *dots = strstr(text, "..");
    if (!dots || dots == text || text[0] < '0' || text[0] > '9' || dots[2] < '0' || dots[2] > '9')
        return ST_OK;
    const long long first = strtoll(text, &end, 10);
    if (end != dots)
        return ST_OK;
    const long long last = strtoll(dots + 2, &end, 10);
    if (*end)
        return ST_OK;
    *out_is = true;
    if (last < first || last - first >= MAX_NAMES)
        return FAIL_IN(ST_CONFIG, pattern->pattern,
                       "{%s}: expected a rising range of at most %d numbers", text, MAX_NAMES);
    const int width = text[0] == '0' ? (int)(dots - text) : 0;
    for (long long i = first; i <= last; i++) {
        char digits[96];
        const int size = snprintf(digits, sizeof digits, "%0*lld", width, i);
        TRY(with(pattern, done, strlen(done), digits, (size_t)size, rest));
    }
    return ST_OK;
}

/* `done` is the name so far, `rest` the part of the pattern that is still to be expanded. */
static status expand(expansion *pattern, const char *done, const char *rest)
{
    const char *open = strchr(rest, '{');
    if (!open) {
        char name[NAME_MAX_BYTES];
        if (++pattern->count > MAX_NAMES)
            return FAIL_IN(ST_CONFIG, pattern->pattern, "it stands for more than %d names",
                           MAX_NAMES);
        if (snprintf(name, sizeof name, "%s%s", done, rest) >= (int)sizeof name)
            return FAIL_IN(ST_CONFIG, pattern->pattern, "it gives a name of more than %d bytes",
                           NAME_MAX_BYTES - 1);
        return pattern->each(pattern->user, name);
    }
    const char *close = strchr(open, '}');
    if (!close || close == open + 1 || memchr(open + 1, '{', (size_t)(close - open - 1)))
        return FAIL_IN(ST_CONFIG, pattern->pattern, "its braces are empty, nested or not closed");
    char before[NAME_MAX_BYTES];
    if (snprintf(before, sizeof before, "%s%.*s", done, (int)(open - rest), rest) >=
        (int)sizeof before)
        return FAIL_IN(ST_CONFIG, pattern->pattern, "it gives a name of more than %d bytes",
                       NAME_MAX_BYTES - 1);
    bool is_range;
    TRY(expand_range(pattern, before, open + 1, (size_t)(close - open - 1), close + 1, &is_range));
    if (is_range)
        return ST_OK;
    for (const char *at = open + 1; at <= close;) {
        const size_t count = strcspn(at, ",}");
        TRY(with(pattern, before, strlen(before), at, count, close + 1));
        at += count + 1;
    }
    return ST_OK;
}

status braces_expand(const char *pattern, brace_each each, void *user)
{
    expansion walk = {.pattern = pattern, .each = each, .user = user};
    return expand(&walk, "", pattern);
}

/* --- the data set --- */

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
