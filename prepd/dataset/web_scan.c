/* web_scan.c: tars found and their headers read, once: members that follow each other and have one
 * key are a sample. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "common/base/compare.h"
#include "common/base/utf8.h"
#include "prepd/dataset/braces.h"
#include "prepd/dataset/webdataset.h"

enum { MAX_WORDS = 64 << 20 }; /* bytes of a .json, .txt or .cls */

/* While scanning: the sample whose members are coming. */
typedef struct scanning {
    webdataset *d;
    int32_t shard;
    char key[TAR_NAME_MAX];
    bool open, limit_reached;
    web_sample s;
    member_place found[4]; /* by words_kind; bytes -1 none */
    char *words[4];
    char endings[1024]; /* seen, each between slashes */
    hasher *h;
} scanning;

static bool json_is_chat(const char *bytes, size_t n)
{
    json_value *v = NULL;
    if (json_parse(bytes, n, "json", &v) != ST_OK)
        return true; /* its fault is told when it is read */
    const bool chat = chat_record_is(v);
    json_free(&v);
    return chat;
}

/* The first cause stays. named: it says already which sample. */
static status blame(webdataset *d, web_sample *s, const char *cause, bool named)
{
    char name[2 * TAR_NAME_MAX] = "";
    if (s->cause)
        return ST_OK;
    if (!named)
        snprintf(name, sizeof name, "%s: ", text_pool_at(&d->texts, s->name)); /* the pool moves */
    return text_pool_format(&d->texts, &s->cause, "%s%s", name, cause);
}

/* Which words count: a conversation, else a text, else a caption, else a class. */
static words_kind choose_words(const scanning *k)
{
    const bool json = k->words[WORDS_JSON], txt = k->words[WORDS_TXT];
    if (json && (!txt || json_is_chat(k->words[WORDS_JSON], (size_t)k->found[WORDS_JSON].bytes)))
        return WORDS_JSON;
    return txt ? WORDS_TXT : k->words[WORDS_CLS] ? WORDS_CLS : WORDS_NONE;
}

static status finish_sample(scanning *k)
{
    webdataset *d = k->d;
    web_sample *s = &k->s;
    chat_record r;
    arena a;
    if (!k->open)
        return ST_OK;
    k->open = false;
    const char *source = text_pool_at(&d->texts, s->name);
    char copy[2 * TAR_NAME_MAX];
    snprintf(copy, sizeof copy, "%s", source); /* the pool moves */
    s->kind = choose_words(k);
    s->words = k->found[s->kind];
    status st = ST_OK;
    if (s->kind == WORDS_NONE) {
        st = FAIL_IN(ST_BAD_INPUT, copy, "has no .json, .txt or .cls");
    } else if (!s->cause) {
        arena_init(&a, 0);
        st = web_read_words(d, s, k->words[s->kind], (size_t)s->words.bytes, copy, &a, &r);
        arena_done(&a);
    }
    if (st == ST_BAD_INPUT)
        st = blame(d, s, status_text(), true);
    for (int w = 0; w < 4; w++) {
        if (k->words[w])
            hasher_add(k->h, k->words[w], (size_t)k->found[w].bytes);
        free(k->words[w]);
        k->words[w] = NULL;
    }
    TRY(st);
    TRY(array_room((void **)&d->samples, d->n, &d->capacity, sizeof *d->samples));
    d->samples[d->n++] = *s;
    return ST_OK;
}

static status begin_sample(scanning *k, const char *key)
{
    webdataset *d = k->d;
    TRY(finish_sample(k));
    if (d->limit && d->n >= d->limit) {
        k->limit_reached = true;
        return FAIL(ST_END, "data.limit");
    }
    snprintf(k->key, sizeof k->key, "%s", key);
    k->s = (web_sample){.shard = k->shard, .first_image = d->n_images};
    k->open = true;
    strcpy(k->endings, "/");
    return text_pool_format(&d->texts, &k->s.name, "%s:%s", name_list_at(&d->shards, k->shard),
                            key);
}

static words_kind kind_of(const char *last)
{
    return strcasecmp(last, "json") == 0  ? WORDS_JSON
           : strcasecmp(last, "txt") == 0 ? WORDS_TXT
           : strcasecmp(last, "cls") == 0 ? WORDS_CLS
                                          : WORDS_NONE;
}

static bool is_image(const char *last)
{
    return strcasecmp(last, "jpg") == 0 || strcasecmp(last, "jpeg") == 0 ||
           strcasecmp(last, "png") == 0 || strcasecmp(last, "webp") == 0;
}

static bool is_video(const char *last)
{
    static const char *const endings[] = {"mp4", "m4v", "mov", "mkv", "webm", "avi", "ts"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (strcasecmp(last, endings[i]) == 0)
            return true;
    return false;
}

static status add_image(scanning *k, const tar_member *m, bool video)
{
    webdataset *d = k->d;
    if (d->n_images == INT32_MAX)
        return FAIL(ST_BAD_INPUT, "more than %d images", INT32_MAX);
    TRY(array_room((void **)&d->images, d->n_images, &d->image_capacity, sizeof *d->images));
    web_image *x = &d->images[d->n_images];
    *x = (web_image){.at = {m->offset, m->bytes}, .shard = k->shard, .video = video};
    d->any_video |= video;
    TRY(text_pool_format(&d->texts, &x->name, "%s:%s", name_list_at(&d->shards, k->shard),
                         m->name));
    d->n_images++;
    k->s.n_images++;
    return ST_OK;
}

static status add_words(scanning *k, words_kind kind, const tar_member *m, int fd)
{
    if (m->bytes > MAX_WORDS)
        return blame(k->d, &k->s, "its words are longer than 64 MiB", false);
    if (k->words[kind])
        return ST_OK; /* of two of a kind the ending was seen, or differs: the first counts */
    k->found[kind] = (member_place){m->offset, m->bytes};
    return web_read_place(fd, name_list_at(&k->d->shards, k->shard), k->found[kind],
                          &k->words[kind]);
}

static status on_member(void *user, const tar_member *m, int fd)
{
    scanning *k = (scanning *)user;
    const char *slash = strrchr(m->name, '/'), *base = slash ? slash + 1 : m->name;
    const char *dot = strchr(base, '.');
    char key[TAR_NAME_MAX], ending[128];
    if (!dot || dot == base) /* no key, or a hidden file: not a part of a sample */
        return ST_OK;
    snprintf(key, sizeof key, "%.*s", (int)(dot - m->name), m->name);
    if (!k->open || strcmp(key, k->key) != 0)
        TRY(begin_sample(k, key));
    const char *last = strrchr(dot, '.') + 1;
    hasher_add_text(k->h, m->name);
    hasher_add_u64(k->h, (uint64_t)m->bytes);
    if (snprintf(ending, sizeof ending, "/%s/", dot + 1) < (int)sizeof ending &&
        strlen(k->endings) + strlen(ending) < sizeof k->endings) {
        if (strstr(k->endings, ending))
            return blame(k->d, &k->s, "two members of one name", false);
        strcat(k->endings, ending + 1);
    }
    if (is_image(last) || is_video(last))
        return add_image(k, m, is_video(last));
    const words_kind kind = kind_of(last);
    return kind ? add_words(k, kind, m, fd) : ST_OK;
}

/* --- shards --- */

static status note_shard(webdataset *d, const char *name)
{
    int64_t ignored;
    if (!utf8_valid(name, strlen(name)))
        return FAIL_IN(ST_BAD_INPUT, name,
                       "the tar's name is not UTF-8, as what workers are told is: rename it");
    return name_list_append(&d->shards, name, strlen(name), &ignored);
}

static status add_shard(void *user, const char *path)
{
    webdataset *d = (webdataset *)user;
    const char *under = path + strlen(d->root);
    return note_shard(d, under + (*under == '/'));
}

static status shards_of_folder(webdataset *d, const conf *c)
{
    struct dirent *entry;
    char **names = NULL;
    int64_t n = 0, capacity = 0, others = 0;
    status st = ST_OK;
    DIR *dir = opendir(d->root);
    if (!dir)
        return FAIL_IN(ST_NO_INPUT, d->root, "data.path cannot be read as a folder: %s",
                       strerror(errno));
    while ((entry = readdir(dir))) {
        const size_t size = strlen(entry->d_name);
        if (size < 5 || strcmp(entry->d_name + size - 4, ".tar") != 0)
            continue;
        if (!name_has_split(entry->d_name, size - 4, c->data_split)) {
            others++;
            continue;
        }
        TRY_OR(done, array_room((void **)&names, n, &capacity, sizeof *names));
        names[n] = strdup(entry->d_name);
        if (!names[n++]) {
            st = FAIL(ST_NO_MEMORY, "no memory for a name");
            goto done;
        }
    }
    if (n == 0)
        st = FAIL_IN(ST_NO_INPUT, d->root,
                     "no tar file whose name holds data.split \"%s\" (%" PRId64
                     " others); data.path may also be one file or a name with braces: "
                     "shards/{00000..00127}.tar",
                     c->data_split, others);
    else
        qsort(names, (size_t)n, sizeof *names, compare_texts);
    for (int64_t k = 0; k < n && st == ST_OK; k++)
        st = note_shard(d, names[k]);
done:
    for (int64_t k = 0; k < n; k++)
        free(names[k]);
    free(names);
    closedir(dir);
    return st;
}

status web_find_shards(webdataset *d, const conf *c)
{
    struct stat info;
    if (snprintf(d->root, sizeof d->root, "%s", c->data_path) >= (int)sizeof d->root)
        return FAIL_IN(ST_CONFIG, c->data_path, "data.path is too long");
    if (stat(d->root, &info) == 0 && S_ISDIR(info.st_mode))
        return shards_of_folder(d, c);
    char *brace = strchr(d->root, '{');
    if (brace)
        *brace = 0;
    char *slash = strrchr(d->root, '/');
    if (slash)
        *slash = 0;
    return braces_expand(c->data_path, add_shard, d);
}

status web_scan(webdataset *d, hasher *h)
{
    scanning k = {.d = d, .h = h};
    status st = ST_OK;
    for (int64_t s = 0; s < d->shards.n && st == ST_OK && !k.limit_reached; s++) {
        char path[2 * TAR_NAME_MAX];
        snprintf(path, sizeof path, "%s/%s", d->root, name_list_at(&d->shards, s));
        k.shard = (int32_t)s;
        st = tar_read(path, on_member, &k);
        if (k.limit_reached)
            st = ST_OK;
        if (st == ST_OK)
            st = finish_sample(&k);
    }
    for (int w = 0; w < 4; w++)
        free(k.words[w]);
    return st;
}
