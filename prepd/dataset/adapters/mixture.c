/* SPDX-License-Identifier: Apache-2.0 */
/* mixture.c: several sources as one data set.
 *
 * data.path is a YAML file that lists the sources. Samples are numbered source after source. The
 * root is the folder that the roots of all sources have in common, and the paths of images are
 * relative to it. In what proportion and order the sources are mixed is decided by the plan, which
 * asks for `parts`. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/words.h"
#include "common/conf/yaml.h"
#include "common/program/log.h"
#include "prepd/dataset/adapters/open_source.h"
#include "prepd/dataset/dataset.h"
#include "prepd/dataset/tables.h"

enum { MAX_SOURCES = 256, NAME_BYTES = 64 };

typedef struct mixed_source {
    char name[NAME_BYTES];
    conf conf;
    bool have_conf;                       /* `conf` is to be freed */
    bool weighted, own_limit, own_format; /* the list gives it a weight; a limit; a format */
    dataset *set;
    int64_t first_image;
    char *holder; /* dataset_vtable.holder with all links resolved; NULL if it has no images */
} mixed_source;

typedef struct mixture {
    dataset base;
    char file[PATH_MAX], folder[PATH_MAX]; /* the list, and the folder it lies in */
    const conf *from;                      /* the options, while opening */
    mixed_source *sources;                 /* [count] on the heap, because conf is large */
    dataset_part *parts;                   /* [count] */
    int count;
    int64_t n_samples;
    name_list images; /* relative to root */
    char root[PATH_MAX];
    hash128 identity, contents;
} mixture;

static const mixture *as_mixture(const dataset *set)
{
    return (const mixture *)set;
}

static void mixture_close(dataset *base)
{
    mixture *mix = (mixture *)base;
    if (!mix)
        return;
    for (int k = 0; mix->sources && k < mix->count; k++) {
        dataset_close(&mix->sources[k].set);
        free(mix->sources[k].holder);
        if (mix->sources[k].have_conf)
            conf_done(&mix->sources[k].conf);
    }
    name_list_done(&mix->images);
    free(mix->sources);
    free(mix->parts);
    free(mix);
}

/* --- the list --- */

/* The options of data.* that a source may set; all others belong to the stream. */
static const char *const own_keys[] = {"format",        "path",   "split", "images",
                                       "answer",        "prompt", "limit", "loss_on",
                                       "stage_weights", "trim",   "group"};
enum { N_OWN_KEYS = sizeof own_keys / sizeof *own_keys };

static bool is_own_key(const char *key)
{
    for (int k = 0; k < N_OWN_KEYS; k++)
        if (strcmp(key, own_keys[k]) == 0)
            return true;
    return false;
}

static status unknown_key(const mixture *mix, const yaml_item *item)
{
    char list[256] = "";
    size_t count = 0;
    for (int k = 0; k < N_OWN_KEYS; k++)
        count = words_add(list, sizeof list, count, ", %s", own_keys[k]);
    return FAIL_AT(ST_CONFIG, mix->file, item->line, -1,
                   "%s: expected SOURCE.KEY, where KEY is one of weight%s", item->key, list);
}

static status new_source(mixture *mix, const char *name, size_t length, mixed_source **out)
{
    if (mix->count == MAX_SOURCES)
        return FAIL_IN(ST_CONFIG, mix->file, "it lists more than %d sources", MAX_SOURCES);
    if (length >= NAME_BYTES)
        return FAIL_IN(ST_CONFIG, mix->file, "the name of a source is longer than %d bytes",
                       NAME_BYTES - 1);
    mixed_source *source = &mix->sources[mix->count];
    memcpy(source->name, name, length);
    TRY(conf_copy(mix->from, &source->conf));
    source->have_conf = true;
    mix->parts[mix->count].name = source->name;
    mix->count++;
    TRY(conf_set(&source->conf, "data.path", ""));
    TRY(conf_set(&source->conf, "data.images", ""));
    TRY(conf_set(&source->conf, "data.format", "vqav2"));
    TRY(conf_set(&source->conf, "data.group", "none"));
    *out = source;
    return ST_OK;
}

static status set_weight(mixture *mix, mixed_source *source, const yaml_item *item)
{
    char *end;
    const double weight = strtod(item->text, &end);
    if (end == item->text || *end || !(weight > 0 && weight <= 1e9))
        return FAIL_AT(ST_CONFIG, mix->file, item->line, -1,
                       "%s: expected a number above 0 and at most 1e9, found \"%.40s\"", item->key,
                       item->text);
    source->weighted = true;
    mix->parts[source - mix->sources].weight = weight;
    return ST_OK;
}

static status set_key(mixture *mix, mixed_source *source, const char *key, const yaml_item *item)
{
    char full[64], path[2 * PATH_MAX];
    const char *value = item->text;
    snprintf(full, sizeof full, "data.%s", key);
    if ((strcmp(key, "path") == 0 || strcmp(key, "images") == 0) && value[0] != '/') {
        snprintf(path, sizeof path, "%s/%s", mix->folder, value);
        value = path;
    }
    source->own_limit |= strcmp(key, "limit") == 0;
    source->own_format |= strcmp(key, "format") == 0;
    if (strcmp(key, "group") == 0 && strncmp(value, "shared_", 7) == 0)
        return FAIL_AT(ST_CONFIG, mix->file, item->line, -1,
                       "%s: which samples share a picture or a prefix is said for all sources "
                       "together: set data.group beside data.path",
                       item->key);
    if (conf_set(&source->conf, full, value) == ST_OK)
        return ST_OK;
    char what[STATUS_MESSAGE_MAX];
    strcpy(what, status_last()->message);
    return FAIL_AT(ST_CONFIG, mix->file, item->line, -1, "%s: %s", item->key, what);
}

static status on_leaf(void *user, const yaml_item *item)
{
    mixture *mix = (mixture *)user;
    const char *dot = strchr(item->key, '.');
    mixed_source *source = NULL;
    if (!dot || (!is_own_key(dot + 1) && strcmp(dot + 1, "weight") != 0))
        return unknown_key(mix, item);
    for (int k = 0; k < mix->count && !source; k++)
        if (strlen(mix->sources[k].name) == (size_t)(dot - item->key) &&
            strncmp(mix->sources[k].name, item->key, (size_t)(dot - item->key)) == 0)
            source = &mix->sources[k];
    if (!source)
        TRY(new_source(mix, item->key, (size_t)(dot - item->key), &source));
    if (strcmp(dot + 1, "weight") == 0)
        return set_weight(mix, source, item);
    return set_key(mix, source, dot + 1, item);
}

static status read_list(mixture *mix, const conf *options)
{
    struct stat info;
    if (stat(options->data_path, &info) != 0 || !S_ISREG(info.st_mode))
        return FAIL_IN(ST_NO_INPUT, options->data_path,
                       "data.path of a mixture must name a YAML file that lists the sources: %s",
                       S_ISDIR(info.st_mode) ? "this is a folder" : strerror(errno));
    snprintf(mix->file, sizeof mix->file, "%s", options->data_path);
    snprintf(mix->folder, sizeof mix->folder, "%s", options->data_path);
    char *slash = strrchr(mix->folder, '/');
    if (slash)
        *slash = 0;
    TRY(yaml_read(mix->file, on_leaf, NULL, mix));
    if (mix->count == 0)
        return FAIL_IN(ST_CONFIG, mix->file, "it lists no source");
    for (int k = 1; k < mix->count; k++)
        if (mix->sources[k].weighted != mix->sources[0].weighted)
            return FAIL_IN(
                ST_CONFIG, mix->file,
                "source %s has a weight and %s has none: give a weight to all of them, or to none",
                mix->sources[mix->sources[0].weighted ? 0 : k].name,
                mix->sources[mix->sources[0].weighted ? k : 0].name);
    return ST_OK;
}

/* --- the sources --- */

static status open_source(mixture *mix, int index)
{
    mixed_source *source = &mix->sources[index];
    if (!source->own_format) /* lists of the first versions need not say it */
        log_warn("%s: source %s names no format and is read as vqav2; add its format (vqav2, "
                 "conversations, webdataset, text or video)",
                 mix->file, source->name);
    if (source->conf.data_format == DATA_MIXTURE)
        return FAIL_IN(ST_CONFIG, mix->file, "source %s: a source cannot be a mixture itself",
                       source->name);
    if (!source->own_limit)
        source->conf.data_limit = mix->from->data_limit;
    status st = dataset_open_source(&source->conf, &source->set);
    if (st != ST_OK)
        return status_context(st, "source %s", source->name);
    mix->parts[index].first = mix->n_samples;
    mix->parts[index].count = source->set->adapter->samples(source->set);
    mix->n_samples += mix->parts[index].count;
    return ST_OK;
}

/* The folder of the images of a source with all links resolved; "" if it has no images. */
static status real_root(const mixture *mix, int index, char out[PATH_MAX])
{
    const dataset *set = mix->sources[index].set;
    out[0] = 0;
    if (set->adapter->images(set) && !realpath(set->adapter->root(set), out))
        return FAIL_IN(ST_NO_INPUT, set->adapter->root(set),
                       "source %s: its folder cannot be read: %s", mix->sources[index].name,
                       strerror(errno));
    return ST_OK;
}

/* Shortens the root to the folder that it has in common with the path. */
static void common_folder(char *root, const char *path)
{
    size_t count = 0, end = 0;
    for (; root[count] && root[count] == path[count]; count++)
        if (root[count] == '/')
            end = count;
    if ((root[count] == 0 || root[count] == '/') && (path[count] == 0 || path[count] == '/'))
        end = count;
    root[end ? end : 1] = 0;
}

/* The root of the mixture may lie far above that of a source. So a source keeps the folder that the
 * user named for it, outside which none of its files is sent. */
static status find_holder(mixed_source *source)
{
    if (!source->set->adapter->images(source->set))
        return ST_OK;
    const char *holder = dataset_holder(source->set, 0);
    source->holder = realpath(holder, NULL);
    return source->holder ? ST_OK
                          : FAIL_IN(ST_NO_INPUT, holder, "source %s: its folder cannot be read: %s",
                                    source->name, strerror(errno));
}

static status place_images(mixture *mix)
{
    char root[PATH_MAX], path[2 * PATH_MAX];
    for (int k = 0; k < mix->count; k++) {
        TRY(real_root(mix, k, root));
        if (!root[0])
            continue;
        if (mix->root[0])
            common_folder(mix->root, root);
        else
            snprintf(mix->root, sizeof mix->root, "%s", root);
    }
    const size_t skip = strlen(mix->root);
    for (int k = 0; k < mix->count; k++) {
        TRY(find_holder(&mix->sources[k]));
        const dataset *set = mix->sources[k].set;
        mix->sources[k].first_image = mix->images.count;
        TRY(real_root(mix, k, root));
        const char *under = root[0] ? root + skip : root;
        under += *under == '/';
        for (int64_t j = 0; j < set->adapter->images(set); j++) {
            int64_t ignored;
            int length = snprintf(path, sizeof path, "%s%s%s", under, *under ? "/" : "",
                                  set->adapter->image_path(set, j));
            TRY(name_list_append(&mix->images, path, (size_t)length, &ignored));
        }
    }
    if (!mix->root[0])
        snprintf(mix->root, sizeof mix->root, "%s", mix->folder);
    return ST_OK;
}

/* The digest with the weights, which is that of the stream, or without,
 * which is that of the index. */
static status digest_of(const mixture *mix, bool weights, hash128 *out)
{
    hasher *hash = NULL;
    TRY(hasher_new(&hash));
    hasher_add(hash, "mixture", 7);
    for (int k = 0; k < mix->count; k++) {
        const hash128 one = mix->sources[k].set->adapter->identity(mix->sources[k].set);
        char weight[32]; /* written as text, which is the same on every machine */
        const int length = snprintf(weight, sizeof weight, "%.17g", mix->parts[k].weight);
        hasher_add(hash, one.bytes, sizeof one.bytes);
        if (weights)
            hasher_add(hash, weight, (size_t)length + 1);
    }
    *out = hasher_value(hash);
    hasher_free(&hash);
    return ST_OK;
}

static status mixture_open(const conf *options, dataset **out)
{
    status st;
    if (options->data_group == GROUP_CONVERSATION)
        return FAIL(ST_CONFIG,
                    "data.group conversation works only with data.format vqav2; in a mixture write "
                    "\"group: conversation\" under the sources of that format");
    mixture *mix = (mixture *)calloc(1, sizeof *mix);
    if (!mix)
        return FAIL(ST_NO_MEMORY, "no memory for a mixture");
    mix->base.adapter = &dataset_mixture;
    mix->from = options;
    mix->sources = (mixed_source *)calloc(MAX_SOURCES, sizeof *mix->sources);
    mix->parts = (dataset_part *)calloc(MAX_SOURCES, sizeof *mix->parts);
    if (!mix->sources || !mix->parts) {
        st = FAIL(ST_NO_MEMORY, "no memory for a mixture");
        goto failed;
    }
    TRY_OR(failed, read_list(mix, options));
    for (int k = 0; k < mix->count; k++)
        TRY_OR(failed, open_source(mix, k));
    TRY_OR(failed, place_images(mix));
    TRY_OR(failed, digest_of(mix, true, &mix->identity));
    TRY_OR(failed, digest_of(mix, false, &mix->contents));
    mix->from = NULL;
    *out = &mix->base;
    return ST_OK;
failed:
    mixture_close(&mix->base);
    return st;
}

static int64_t mixture_samples(const dataset *set)
{
    return as_mixture(set)->n_samples;
}

static int64_t mixture_images(const dataset *set)
{
    return as_mixture(set)->images.count;
}

static const char *mixture_image_path(const dataset *set, int64_t index)
{
    return name_list_at(&as_mixture(set)->images, index);
}

static int source_of_image(const mixture *mix, int64_t index)
{
    int k = mix->count - 1;
    while (k > 0 && mix->sources[k].first_image > index)
        k--;
    return k;
}

/* The place that the source gives, with a path relative to the root of the mixture. What comes
 * before the source's own path is the same as in the name of the image. */
static void mixture_place(const dataset *set, int64_t index, image_place *out)
{
    const mixture *mix = as_mixture(set);
    const int k = source_of_image(mix, index);
    const dataset *source = mix->sources[k].set;
    const int64_t mine = index - mix->sources[k].first_image;
    const char *whole = name_list_at(&mix->images, index);
    const size_t under = strlen(whole) - strlen(source->adapter->image_path(source, mine));
    image_place place;
    dataset_image_place(source, mine, &place);
    *out = place;
    snprintf(out->path, sizeof out->path, "%.*s%s", (int)under, whole, place.path);
}

static const char *mixture_frame(const dataset *set, int64_t index, int32_t at)
{
    const mixture *mix = as_mixture(set);
    const mixed_source *source = &mix->sources[source_of_image(mix, index)];
    return source->set->adapter->frame(source->set, index - source->first_image, at);
}

static bool mixture_videos(const dataset *set)
{
    const mixture *mix = as_mixture(set);
    for (int k = 0; k < mix->count; k++)
        if (mix->sources[k].set->adapter->videos &&
            mix->sources[k].set->adapter->videos(mix->sources[k].set))
            return true;
    return false;
}

static const char *mixture_root(const dataset *set)
{
    return as_mixture(set)->root;
}

static const char *mixture_holder(const dataset *set, int64_t index)
{
    const mixture *mix = as_mixture(set);
    return mix->sources[source_of_image(mix, index)].holder;
}

static hash128 mixture_identity(const dataset *set)
{
    return as_mixture(set)->identity;
}

static hash128 mixture_contents(const dataset *set)
{
    return as_mixture(set)->contents;
}

static int mixture_parts(const dataset *set, const dataset_part **out)
{
    *out = as_mixture(set)->parts;
    return as_mixture(set)->count;
}

/* The source of sample `index`; -1 if there is none. */
static int source_of(const mixture *mix, int64_t index)
{
    for (int k = 0; k < mix->count; k++)
        if (index >= mix->parts[k].first && index < mix->parts[k].first + mix->parts[k].count)
            return k;
    return -1;
}

static int64_t mixture_chunk(const dataset *set, int64_t index)
{
    const mixture *mix = as_mixture(set);
    const int k = source_of(mix, index);
    const dataset *source = mix->sources[k].set;
    return source->adapter->chunk ? source->adapter->chunk(source, index - mix->parts[k].first)
                                  : -1;
}

static const char *mixture_reference(const dataset *set, int64_t index)
{
    const mixture *mix = as_mixture(set);
    const int k = source_of(mix, index);
    const dataset *source = k < 0 ? NULL : mix->sources[k].set;
    return source && source->adapter->reference
               ? source->adapter->reference(source, index - mix->parts[k].first)
               : NULL;
}

static status get_mixed_sample(const dataset *set, int64_t index, bool whole, arena *memory,
                               sample *out)
{
    const mixture *mix = as_mixture(set);
    const int k = source_of(mix, index);
    if (k < 0)
        return FAIL(ST_BAD_INPUT, "sample %" PRId64 " of %" PRId64, index, mix->n_samples);
    const mixed_source *source = &mix->sources[k];
    sample smp;
    const int64_t j = index - mix->parts[k].first;
    TRY(whole ? source->set->adapter->sample(source->set, j, memory, &smp)
              : source->set->adapter->outline(source->set, j, memory, &smp));
    int32_t *images;
    char *name;
    const size_t room = strlen(source->name) + strlen(smp.name) + 3;
    TRY(arena_calloc(memory, (size_t)smp.n_images + 1, sizeof *images, (void **)&images));
    for (int32_t image = 0; image < smp.n_images; image++)
        images[image] = smp.images[image] + (int32_t)source->first_image;
    TRY(arena_alloc(memory, room, (void **)&name));
    snprintf(name, room, "%s: %s", source->name, smp.name);
    smp.id = (uint64_t)index;
    smp.name = name;
    smp.images = images;
    *out = smp;
    return ST_OK;
}

static status mixture_get(const dataset *set, int64_t index, arena *memory, sample *out)
{
    return get_mixed_sample(set, index, true, memory, out);
}

static status mixture_outline(const dataset *set, int64_t index, arena *memory, sample *out)
{
    return get_mixed_sample(set, index, false, memory, out);
}

const dataset_vtable dataset_mixture = {
    .name = "mixture",
    .open = mixture_open,
    .close = mixture_close,
    .samples = mixture_samples,
    .sample = mixture_get,
    .outline = mixture_outline,
    .images = mixture_images,
    .image_path = mixture_image_path,
    .place = mixture_place,
    .frame = mixture_frame,
    .videos = mixture_videos,
    .root = mixture_root,
    .holder = mixture_holder,
    .chunk = mixture_chunk,
    .parts = mixture_parts,
    .reference = mixture_reference,
    .identity = mixture_identity,
    .contents = mixture_contents,
};

status dataset_open(const conf *options, dataset **out)
{
    return options->data_format == DATA_MIXTURE ? dataset_open_by(&dataset_mixture, options, out)
                                                : dataset_open_source(options, out);
}
