/* mixture.c: several sources as one data set: their samples one source after another, their images
 * under the folder that holds them all. In what proportion they are mixed, and in what order, is
 * the plan's affair (parts). */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/conf/yaml.h"
#include "common/base/words.h"
#include "prepd/dataset/dataset.h"
#include "prepd/dataset/names.h"
#include "prepd/dataset/open_source.h"

enum { MAX_SOURCES = 256, NAME_BYTES = 64 };

typedef struct mixed_source {
    char name[NAME_BYTES];
    conf c;
    bool have_conf, weighted, own_limit;
    dataset *d;
    int64_t first_image;
    char *holder; /* dataset_vtable.holder, without links; heap; NULL: no images */
} mixed_source;

typedef struct mixture {
    dataset base;
    char file[PATH_MAX], folder[PATH_MAX]; /* of the list */
    const conf *from;                      /* while opening */
    mixed_source *sources;                 /* [n], heap: conf is large */
    dataset_part *parts;                   /* [n] */
    int n;
    int64_t n_samples;
    name_list images; /* relative to root */
    char root[PATH_MAX];
    hash128 identity, contents;
} mixture;

static const mixture *as_mixture(const dataset *d)
{
    return (const mixture *)d;
}

static void mixture_close(dataset *base)
{
    mixture *m = (mixture *)base;
    if (!m)
        return;
    for (int k = 0; m->sources && k < m->n; k++) {
        dataset_close(&m->sources[k].d);
        free(m->sources[k].holder);
        if (m->sources[k].have_conf)
            conf_done(&m->sources[k].c);
    }
    name_list_done(&m->images);
    free(m->sources);
    free(m->parts);
    free(m);
}

/* --- the list --- */

/* Options a source may set; the others belong to the stream. */
static const char *const own_keys[] = {"format",        "path",   "split",  "images",
                                       "answer",        "prompt", "limit",  "loss_on",
                                       "stage_weights", "trim",   "suffix", "group"};
enum { N_OWN_KEYS = sizeof own_keys / sizeof *own_keys };

static bool is_own_key(const char *key)
{
    for (int k = 0; k < N_OWN_KEYS; k++)
        if (strcmp(key, own_keys[k]) == 0)
            return true;
    return false;
}

static status unknown_key(const mixture *m, const yaml_item *item)
{
    char list[256] = "";
    size_t n = 0;
    for (int k = 0; k < N_OWN_KEYS; k++)
        n = words_add(list, sizeof list, n, ", %s", own_keys[k]);
    return FAIL_AT(ST_CONFIG, m->file, item->line, -1, "%s: expected NAME.KEY with one of weight%s",
                   item->key, list);
}

static status new_source(mixture *m, const char *name, size_t n, mixed_source **out)
{
    if (m->n == MAX_SOURCES)
        return FAIL_IN(ST_CONFIG, m->file, "more than %d sources", MAX_SOURCES);
    if (n >= NAME_BYTES)
        return FAIL_IN(ST_CONFIG, m->file, "a source's name is longer than %d bytes",
                       NAME_BYTES - 1);
    mixed_source *s = &m->sources[m->n];
    memcpy(s->name, name, n);
    TRY(conf_copy(m->from, &s->c));
    s->have_conf = true;
    m->parts[m->n].name = s->name;
    m->n++;
    TRY(conf_set(&s->c, "data.path", ""));
    TRY(conf_set(&s->c, "data.images", ""));
    TRY(conf_set(&s->c, "data.format", "vqav2"));
    TRY(conf_set(&s->c, "data.group", "none"));
    *out = s;
    return ST_OK;
}

static status set_weight(mixture *m, mixed_source *s, const yaml_item *item)
{
    char *end;
    const double w = strtod(item->text, &end);
    if (end == item->text || *end || !(w > 0 && w <= 1e9))
        return FAIL_AT(ST_CONFIG, m->file, item->line, -1,
                       "%s: \"%.40s\": expected a number above 0, at most 1e9", item->key,
                       item->text);
    s->weighted = true;
    m->parts[s - m->sources].weight = w;
    return ST_OK;
}

static status set_key(mixture *m, mixed_source *s, const char *key, const yaml_item *item)
{
    char full[64], path[2 * PATH_MAX];
    const char *value = item->text;
    snprintf(full, sizeof full, "data.%s", key);
    if ((strcmp(key, "path") == 0 || strcmp(key, "images") == 0) && value[0] != '/') {
        snprintf(path, sizeof path, "%s/%s", m->folder, value);
        value = path;
    }
    s->own_limit |= strcmp(key, "limit") == 0;
    if (strcmp(key, "group") == 0 && strcmp(value, "shared_image") == 0)
        return FAIL_AT(ST_CONFIG, m->file, item->line, -1,
                       "%s: pictures are shared over all sources: set data.group beside data.path",
                       item->key);
    if (conf_set(&s->c, full, value) == ST_OK)
        return ST_OK;
    char what[STATUS_MESSAGE_MAX];
    strcpy(what, status_last()->message);
    return FAIL_AT(ST_CONFIG, m->file, item->line, -1, "%s: %s", item->key, what);
}

static status on_leaf(void *user, const yaml_item *item)
{
    mixture *m = (mixture *)user;
    const char *dot = strchr(item->key, '.');
    mixed_source *s = NULL;
    if (!dot || (!is_own_key(dot + 1) && strcmp(dot + 1, "weight") != 0))
        return unknown_key(m, item);
    for (int k = 0; k < m->n && !s; k++)
        if (strlen(m->sources[k].name) == (size_t)(dot - item->key) &&
            strncmp(m->sources[k].name, item->key, (size_t)(dot - item->key)) == 0)
            s = &m->sources[k];
    if (!s)
        TRY(new_source(m, item->key, (size_t)(dot - item->key), &s));
    if (strcmp(dot + 1, "weight") == 0)
        return set_weight(m, s, item);
    return set_key(m, s, dot + 1, item);
}

static status read_list(mixture *m, const conf *c)
{
    struct stat info;
    if (stat(c->data_path, &info) != 0 || !S_ISREG(info.st_mode))
        return FAIL_IN(ST_NO_INPUT, c->data_path,
                       "data.path of a mixture is a YAML file of sources: %s",
                       S_ISDIR(info.st_mode) ? "this is a folder" : strerror(errno));
    snprintf(m->file, sizeof m->file, "%s", c->data_path);
    snprintf(m->folder, sizeof m->folder, "%s", c->data_path);
    char *slash = strrchr(m->folder, '/');
    if (slash)
        *slash = 0;
    TRY(yaml_read(m->file, on_leaf, m));
    if (m->n == 0)
        return FAIL_IN(ST_CONFIG, m->file, "there is no source");
    for (int k = 1; k < m->n; k++)
        if (m->sources[k].weighted != m->sources[0].weighted)
            return FAIL_IN(ST_CONFIG, m->file,
                           "source %s has a weight, %s has none: give all of them one, or none",
                           m->sources[m->sources[0].weighted ? 0 : k].name,
                           m->sources[m->sources[0].weighted ? k : 0].name);
    return ST_OK;
}

/* --- the sources --- */

static status open_source(mixture *m, int k)
{
    mixed_source *s = &m->sources[k];
    if (s->c.data_format == DATA_MIXTURE)
        return FAIL_IN(ST_CONFIG, m->file, "source %s: a mixture of mixtures", s->name);
    if (!s->own_limit)
        s->c.data_limit = m->from->data_limit;
    status st = dataset_open_source(&s->c, &s->d);
    if (st != ST_OK)
        return status_context(st, "source %s", s->name);
    m->parts[k].first = m->n_samples;
    m->parts[k].n = s->d->v->samples(s->d);
    m->n_samples += m->parts[k].n;
    return ST_OK;
}

/* The folder of the images of a source, without links: "" if it has none. */
static status real_root(const mixture *m, int k, char out[PATH_MAX])
{
    const dataset *d = m->sources[k].d;
    out[0] = 0;
    if (d->v->images(d) && !realpath(d->v->root(d), out))
        return FAIL_IN(ST_NO_INPUT, d->v->root(d), "source %s: it cannot be read: %s",
                       m->sources[k].name, strerror(errno));
    return ST_OK;
}

/* Shortens the root to what it has in common with the path, at a slash. */
static void common_folder(char *root, const char *path)
{
    size_t n = 0, end = 0;
    for (; root[n] && root[n] == path[n]; n++)
        if (root[n] == '/')
            end = n;
    if ((root[n] == 0 || root[n] == '/') && (path[n] == 0 || path[n] == '/'))
        end = n;
    root[end ? end : 1] = 0;
}

/* Our root may be far above: files of a source stay in what the user named for it. */
static status find_holder(mixed_source *s)
{
    if (!s->d->v->images(s->d))
        return ST_OK;
    const char *holder = dataset_holder(s->d, 0);
    s->holder = realpath(holder, NULL);
    return s->holder ? ST_OK
                     : FAIL_IN(ST_NO_INPUT, holder, "source %s: it cannot be read: %s", s->name,
                               strerror(errno));
}

static status place_images(mixture *m)
{
    char root[PATH_MAX], path[2 * PATH_MAX];
    for (int k = 0; k < m->n; k++) {
        TRY(real_root(m, k, root));
        if (!root[0])
            continue;
        if (m->root[0])
            common_folder(m->root, root);
        else
            snprintf(m->root, sizeof m->root, "%s", root);
    }
    const size_t skip = strlen(m->root);
    for (int k = 0; k < m->n; k++) {
        TRY(find_holder(&m->sources[k]));
        const dataset *d = m->sources[k].d;
        m->sources[k].first_image = m->images.n;
        TRY(real_root(m, k, root));
        const char *under = root[0] ? root + skip : root;
        under += *under == '/';
        for (int64_t j = 0; j < d->v->images(d); j++) {
            int64_t ignored;
            int n = snprintf(path, sizeof path, "%s%s%s", under, *under ? "/" : "",
                             d->v->image_path(d, j));
            TRY(name_list_append(&m->images, path, (size_t)n, &ignored));
        }
    }
    if (!m->root[0])
        snprintf(m->root, sizeof m->root, "%s", m->folder);
    return ST_OK;
}

/* With weights the stream's, without what an index is of. */
static status digest_of(const mixture *m, bool weights, hash128 *out)
{
    hasher *h = NULL;
    TRY(hasher_new(&h));
    hasher_add(h, "mixture", 7);
    for (int k = 0; k < m->n; k++) {
        const hash128 one = m->sources[k].d->v->identity(m->sources[k].d);
        char weight[32]; /* as text: the same on every machine */
        const int n = snprintf(weight, sizeof weight, "%.17g", m->parts[k].weight);
        hasher_add(h, one.bytes, sizeof one.bytes);
        if (weights)
            hasher_add(h, weight, (size_t)n + 1);
    }
    *out = hasher_value(h);
    hasher_free(&h);
    return ST_OK;
}

static status mixture_open(const conf *c, dataset **out)
{
    status st;
    if (c->data_group == GROUP_CONVERSATION)
        return FAIL(ST_CONFIG,
                    "data.group conversation is for data.format vqav2; in a mixture write "
                    "\"group: conversation\" under those sources");
    mixture *m = (mixture *)calloc(1, sizeof *m);
    if (!m)
        return FAIL(ST_NO_MEMORY, "no memory for a mixture");
    m->base.v = &dataset_mixture;
    m->from = c;
    m->sources = (mixed_source *)calloc(MAX_SOURCES, sizeof *m->sources);
    m->parts = (dataset_part *)calloc(MAX_SOURCES, sizeof *m->parts);
    if (!m->sources || !m->parts) {
        st = FAIL(ST_NO_MEMORY, "no memory for a mixture");
        goto failed;
    }
    TRY_OR(failed, read_list(m, c));
    for (int k = 0; k < m->n; k++)
        TRY_OR(failed, open_source(m, k));
    TRY_OR(failed, place_images(m));
    TRY_OR(failed, digest_of(m, true, &m->identity));
    TRY_OR(failed, digest_of(m, false, &m->contents));
    m->from = NULL;
    *out = &m->base;
    return ST_OK;
failed:
    mixture_close(&m->base);
    return st;
}

static int64_t mixture_samples(const dataset *d)
{
    return as_mixture(d)->n_samples;
}

static int64_t mixture_images(const dataset *d)
{
    return as_mixture(d)->images.n;
}

static const char *mixture_image_path(const dataset *d, int64_t j)
{
    return name_list_at(&as_mixture(d)->images, j);
}

static int source_of_image(const mixture *m, int64_t j)
{
    int k = m->n - 1;
    while (k > 0 && m->sources[k].first_image > j)
        k--;
    return k;
}

/* The path under our root of a file under the source's: what stands before image_path's too. */
static void mixture_place(const dataset *d, int64_t j, image_place *out)
{
    const mixture *m = as_mixture(d);
    const int k = source_of_image(m, j);
    const dataset *s = m->sources[k].d;
    const int64_t mine = j - m->sources[k].first_image;
    const char *whole = name_list_at(&m->images, j);
    const size_t under = strlen(whole) - strlen(s->v->image_path(s, mine));
    image_place place;
    dataset_image_place(s, mine, &place);
    *out = place;
    snprintf(out->path, sizeof out->path, "%.*s%s", (int)under, whole, place.path);
}

static const char *mixture_frame(const dataset *d, int64_t j, int32_t k)
{
    const mixture *m = as_mixture(d);
    const mixed_source *s = &m->sources[source_of_image(m, j)];
    return s->d->v->frame(s->d, j - s->first_image, k);
}

static bool mixture_videos(const dataset *d)
{
    const mixture *m = as_mixture(d);
    for (int k = 0; k < m->n; k++)
        if (m->sources[k].d->v->videos && m->sources[k].d->v->videos(m->sources[k].d))
            return true;
    return false;
}

static const char *mixture_root(const dataset *d)
{
    return as_mixture(d)->root;
}

static const char *mixture_holder(const dataset *d, int64_t j)
{
    const mixture *m = as_mixture(d);
    return m->sources[source_of_image(m, j)].holder;
}

static hash128 mixture_identity(const dataset *d)
{
    return as_mixture(d)->identity;
}

static hash128 mixture_contents(const dataset *d)
{
    return as_mixture(d)->contents;
}

static int mixture_parts(const dataset *d, const dataset_part **out)
{
    *out = as_mixture(d)->parts;
    return as_mixture(d)->n;
}

/* The source of sample i; -1 if there is none. */
static int source_of(const mixture *m, int64_t i)
{
    for (int k = 0; k < m->n; k++)
        if (i >= m->parts[k].first && i < m->parts[k].first + m->parts[k].n)
            return k;
    return -1;
}

static int64_t mixture_chunk(const dataset *d, int64_t i)
{
    const mixture *m = as_mixture(d);
    const int k = source_of(m, i);
    const dataset *s = m->sources[k].d;
    return s->v->chunk ? s->v->chunk(s, i - m->parts[k].first) : -1;
}

static const char *mixture_reference(const dataset *d, int64_t i)
{
    const mixture *m = as_mixture(d);
    const int k = source_of(m, i);
    const dataset *s = k < 0 ? NULL : m->sources[k].d;
    return s && s->v->reference ? s->v->reference(s, i - m->parts[k].first) : NULL;
}

static status get_mixed_sample(const dataset *d, int64_t i, bool whole, arena *a, sample *out)
{
    const mixture *m = as_mixture(d);
    const int k = source_of(m, i);
    if (k < 0)
        return FAIL(ST_BAD_INPUT, "sample %" PRId64 " of %" PRId64, i, m->n_samples);
    const mixed_source *s = &m->sources[k];
    sample x;
    const int64_t j = i - m->parts[k].first;
    TRY(whole ? s->d->v->sample(s->d, j, a, &x) : s->d->v->outline(s->d, j, a, &x));
    int32_t *images;
    char *name;
    const size_t room = strlen(s->name) + strlen(x.name) + 3;
    TRY(arena_calloc(a, (size_t)x.n_images + 1, sizeof *images, (void **)&images));
    for (int32_t n = 0; n < x.n_images; n++)
        images[n] = x.images[n] + (int32_t)s->first_image;
    TRY(arena_alloc(a, room, (void **)&name));
    snprintf(name, room, "%s: %s", s->name, x.name);
    x.id = (uint64_t)i;
    x.name = name;
    x.images = images;
    *out = x;
    return ST_OK;
}

static status mixture_get(const dataset *d, int64_t i, arena *a, sample *out)
{
    return get_mixed_sample(d, i, true, a, out);
}

static status mixture_outline(const dataset *d, int64_t i, arena *a, sample *out)
{
    return get_mixed_sample(d, i, false, a, out);
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
