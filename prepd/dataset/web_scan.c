/* web_scan.c: finds the tars and reads the headers of their members, once. Members that follow each
 * other and have the same key (the name up to the first dot of its last part) are one sample. */
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

enum { MAX_WORDS = 64 << 20 }; /* the most bytes that a .json, .txt or .cls may have */

/* The state of a scan: the sample whose members are just being read. */
typedef struct scanning {
    webdataset *set;
    int32_t shard;
    char key[TAR_NAME_MAX];
    bool open, limit_reached;
    web_sample sample;
    member_place found[WORDS_KINDS];
    char *words[WORDS_KINDS]; /* heap; NULL if it has no such member */
    char endings[1024];       /* endings seen so far, each between slashes */
    hasher *hash;
} scanning;

/* Whether a .json is a conversation; true also if it is broken, so that the fault is reported when
 * it is read. */
static bool json_is_chat(const char *bytes, size_t n)
{
    json_value *v = NULL;
    if (json_parse(bytes, n, "json", &v) != ST_OK)
        return true;
    const bool chat = chat_record_is(v);
    json_free(&v);
    return chat;
}

/* Gives a sample a cause, unless it has one. `named` says that the cause already names the sample.
 */
static status blame(webdataset *set, web_sample *s, const char *cause, bool named)
{
    char name[2 * TAR_NAME_MAX] = "";
    if (s->cause)
        return ST_OK;
    if (!named)
        snprintf(name, sizeof name,
                 "%s: ", text_pool_at(&set->texts, s->name)); /* copied, because the pool moves */
    return text_pool_format(&set->texts, &s->cause, "%s%s", name, cause);
}

/* Which member gives the texts: a .json that is a conversation, else .txt, else .json, else .cls.
 */
static words_kind choose_words(const scanning *k)
{
    const bool json = k->words[WORDS_JSON], txt = k->words[WORDS_TXT];
    if (json && (!txt || json_is_chat(k->words[WORDS_JSON], (size_t)k->found[WORDS_JSON].bytes)))
        return WORDS_JSON;
    return txt ? WORDS_TXT : k->words[WORDS_CLS] ? WORDS_CLS : WORDS_NONE;
}

static status finish_sample(scanning *k)
{
    webdataset *set = k->set;
    web_sample *s = &k->sample;
    chat_record r;
    arena a;
    if (!k->open)
        return ST_OK;
    k->open = false;
    const char *source = text_pool_at(&set->texts, s->name);
    char copy[2 * TAR_NAME_MAX];
    snprintf(copy, sizeof copy, "%s", source); /* because the pool moves */
    s->kind = choose_words(k);
    s->words = k->found[s->kind];
    status st = ST_OK;
    if (s->kind == WORDS_NONE) {
        st = FAIL_IN(ST_BAD_INPUT, copy, "the sample has no .json, .txt or .cls");
    } else if (!s->cause) {
        arena_init(&a, 0);
        st = web_read_words(set, s, k->words[s->kind], (size_t)s->words.bytes, copy, &a, &r);
        arena_done(&a);
    }
    if (st == ST_BAD_INPUT)
        st = blame(set, s, status_text(), true);
    for (int w = 0; w < WORDS_KINDS; w++) {
        if (k->words[w])
            hasher_add(k->hash, k->words[w], (size_t)k->found[w].bytes);
        free(k->words[w]);
        k->words[w] = NULL;
    }
    TRY(st);
    TRY(array_room((void **)&set->samples, set->count, &set->capacity, sizeof *set->samples));
    set->samples[set->count++] = *s;
    return ST_OK;
}

static status begin_sample(scanning *k, const char *key)
{
    webdataset *set = k->set;
    TRY(finish_sample(k));
    if (set->limit && set->count >= set->limit) {
        k->limit_reached = true;
        return FAIL(ST_END, "data.limit");
    }
    snprintf(k->key, sizeof k->key, "%s", key);
    k->sample = (web_sample){.shard = k->shard, .first_image = set->n_images};
    k->open = true;
    strcpy(k->endings, "/");
    return text_pool_format(&set->texts, &k->sample.name, "%s:%s",
                            name_list_at(&set->shards, k->shard), key);
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
    webdataset *set = k->set;
    if (set->n_images == INT32_MAX)
        return FAIL(ST_BAD_INPUT, "the data set has more than %d images", INT32_MAX);
    TRY(array_room((void **)&set->images, set->n_images, &set->image_capacity,
                   sizeof *set->images));
    web_image *x = &set->images[set->n_images];
    *x = (web_image){.at = {m->offset, m->bytes}, .shard = k->shard, .video = video};
    set->any_video |= video;
    TRY(text_pool_format(&set->texts, &x->name, "%s:%s", name_list_at(&set->shards, k->shard),
                         m->name));
    set->n_images++;
    k->sample.n_images++;
    return ST_OK;
}

static status add_words(scanning *k, words_kind kind, const tar_member *m, int fd)
{
    if (m->bytes > MAX_WORDS)
        return blame(k->set, &k->sample, "its text is longer than 64 MiB", false);
    if (k->words[kind])
        return ST_OK; /* a second one with another ending, such as .a.txt: the first counts */
    k->found[kind] = (member_place){m->offset, m->bytes};
    return web_read_place(fd, name_list_at(&k->set->shards, k->shard), k->found[kind],
                          &k->words[kind]);
}

static status on_member(void *user, const tar_member *m, int fd)
{
    scanning *k = (scanning *)user;
    const char *slash = strrchr(m->name, '/'), *base = slash ? slash + 1 : m->name;
    const char *dot = strchr(base, '.');
    char key[TAR_NAME_MAX], ending[128];
    if (!dot || dot == base) /* it has no key, or is a hidden file: not part of a sample */
        return ST_OK;
    snprintf(key, sizeof key, "%.*s", (int)(dot - m->name), m->name);
    if (!k->open || strcmp(key, k->key) != 0)
        TRY(begin_sample(k, key));
    const char *last = strrchr(dot, '.') + 1;
    hasher_add_text(k->hash, m->name);
    hasher_add_u64(k->hash, (uint64_t)m->bytes);
    if (snprintf(ending, sizeof ending, "/%s/", dot + 1) < (int)sizeof ending &&
        strlen(k->endings) + strlen(ending) < sizeof k->endings) {
        if (strstr(k->endings, ending))
            return blame(k->set, &k->sample, "it has two members of the same name", false);
        strcat(k->endings, ending + 1);
    }
    if (is_image(last) || is_video(last))
        return add_image(k, m, is_video(last));
    const words_kind kind = kind_of(last);
    return kind ? add_words(k, kind, m, fd) : ST_OK;
}

/* --- shards --- */

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

static status shards_of_folder(webdataset *set, const conf *c)
{
    struct dirent *entry;
    char **names = NULL;
    int64_t n = 0, capacity = 0, others = 0;
    status st = ST_OK;
    DIR *dir = opendir(set->root);
    if (!dir)
        return FAIL_IN(ST_NO_INPUT, set->root, "data.path cannot be read as a folder: %s",
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
        st = FAIL_IN(
            ST_NO_INPUT, set->root,
            "the folder holds no tar file whose name has data.split \"%s\" as a word (%" PRId64
            " others); data.path may also be one file, or a name with braces: "
            "shards/{00000..00127}.tar",
            c->data_split, others);
    else
        qsort(names, (size_t)n, sizeof *names, compare_texts);
    for (int64_t k = 0; k < n && st == ST_OK; k++)
        st = note_shard(set, names[k]);
done:
    for (int64_t k = 0; k < n; k++)
        free(names[k]);
    free(names);
    closedir(dir);
    return st;
}

status web_find_shards(webdataset *set, const conf *c)
{
    struct stat info;
    if (snprintf(set->root, sizeof set->root, "%s", c->data_path) >= (int)sizeof set->root)
        return FAIL_IN(ST_CONFIG, c->data_path, "data.path is too long");
    if (stat(set->root, &info) == 0 && S_ISDIR(info.st_mode))
        return shards_of_folder(set, c);
    char *brace = strchr(set->root, '{');
    if (brace)
        *brace = 0;
    char *slash = strrchr(set->root, '/');
    if (slash)
        *slash = 0;
    return braces_expand(c->data_path, add_shard, set);
}

status web_scan(webdataset *set, hasher *hash)
{
    scanning k = {.set = set, .hash = hash};
    status st = ST_OK;
    for (int64_t s = 0; s < set->shards.count && st == ST_OK && !k.limit_reached; s++) {
        char path[2 * TAR_NAME_MAX];
        snprintf(path, sizeof path, "%s/%s", set->root, name_list_at(&set->shards, s));
        k.shard = (int32_t)s;
        st = tar_read(path, on_member, &k);
        if (k.limit_reached)
            st = ST_OK;
        if (st == ST_OK)
            st = finish_sample(&k);
    }
    for (int w = 0; w < WORDS_KINDS; w++)
        free(k.words[w]);
    return st;
}
