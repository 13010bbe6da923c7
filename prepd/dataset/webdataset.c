/* webdataset.c: the adapter of WebDataset tars: consecutive members of one key (the name up to the
 * first dot of its last part) are a sample. Images: .jpg, .jpeg, .png, .webp; the words: .json (a
 * record as in conversations, or "caption"), else .txt, else .cls. Headers are read once; images
 * are read by workers from their places, words again when wanted. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prepd/dataset/braces.h"
#include "prepd/dataset/chat_record.h"
#include "prepd/dataset/names.h"
#include "prepd/dataset/tar.h"

enum { MAX_WORDS = 64 << 20 }; /* bytes of a .json, .txt or .cls */

typedef enum words_kind { WORDS_NONE, WORDS_JSON, WORDS_TXT, WORDS_CLS } words_kind;

/* Bytes of a member. */
typedef struct member_place {
    int64_t offset, bytes;
} member_place;

typedef struct web_image {
    member_place at;
    int64_t name; /* in texts */
    int32_t shard;
} web_image;

typedef struct web_sample {
    member_place words;
    int64_t name, cause; /* in texts; cause 0 = usable */
    int64_t first_image;
    int32_t n_images, shard;
    words_kind kind;
} web_sample;

typedef struct webdataset {
    dataset base;
    char root[TAR_NAME_MAX];
    name_list shards; /* relative to root */
    chat_rules rules;
    char *prompt;
    int64_t limit;
    web_sample *samples;
    int64_t n, capacity;
    web_image *images;
    int32_t *numbers; /* [n_images] 0, 1, ...: a sample's images are a run of them */
    int64_t n_images, image_capacity;
    text_pool texts;
    hash128 identity;
} webdataset;

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

static const webdataset *as_web(const dataset *d)
{
    return (const webdataset *)d;
}

static void web_close(dataset *base)
{
    webdataset *d = (webdataset *)base;
    if (!d)
        return;
    name_list_done(&d->shards);
    text_pool_done(&d->texts);
    free(d->prompt);
    free(d->samples);
    free(d->images);
    free(d->numbers);
    free(d);
}

/* --- words --- */

/* An answer alone: the images and data.prompt, then it. */
static status answer_alone(const webdataset *d, const char *text, size_t n, const web_sample *s,
                           const char *source, arena *a, chat_record *out)
{
    chat_record r = {.id = "", .n_turns = 2, .n_images = s->n_images};
    char *copy;
    part *parts;
    while (n && strchr(" \t\r\n", text[n - 1]))
        n--;
    while (n && strchr(" \t\r\n", *text))
        text++, n--;
    if (n == 0)
        return FAIL_IN(ST_BAD_INPUT, source, "its text is empty");
    if (s->n_images == 0 && !d->prompt[0])
        return FAIL_IN(ST_BAD_INPUT, source, "has neither an image nor a question (data.prompt)");
    TRY(arena_strndup(a, text, n, &copy));
    TRY(arena_calloc(a, 2, sizeof *r.turns, (void **)&r.turns));
    TRY(arena_calloc(a, (size_t)s->n_images + 2, sizeof *parts, (void **)&parts));
    int32_t k = 0;
    for (; k < s->n_images; k++)
        parts[k] = (part){.image = k};
    if (d->prompt[0])
        parts[k++] = (part){d->prompt, (int64_t)strlen(d->prompt), -1};
    r.turns[0] = (turn){.role = ROLE_USER, .parts = parts, .n_parts = k};
    parts[k] = (part){copy, (int64_t)n, -1};
    r.turns[1] = (turn){.role = ROLE_ASSISTANT, .trained = true, .parts = parts + k, .n_parts = 1};
    *out = r;
    return ST_OK;
}

static status read_words(const webdataset *d, const web_sample *s, const char *bytes, size_t n,
                         const char *source, arena *a, chat_record *out)
{
    json_value *v = NULL;
    chat_rules rules = d->rules;
    if (s->kind != WORDS_JSON)
        return answer_alone(d, bytes, n, s, source, a, out);
    if (json_parse(bytes, n, source, &v) != ST_OK) {
        char what[STATUS_MESSAGE_MAX];
        const long long line = (long long)status_last()->line;
        snprintf(what, sizeof what, "%s", status_last()->message);
        return FAIL_IN(ST_BAD_INPUT, source, ".json, line %lld: %s", line, what);
    }
    const json_value *caption = json_find(v, "caption");
    const bool chat = json_find(v, "messages") || json_find(v, "conversations") ||
                      (json_find(v, "question") && json_find(v, "answer"));
    rules.outside = true;
    rules.n_outside = s->n_images;
    status st =
        !chat && caption && json_typeof(caption) == JSON_TEXT
            ? answer_alone(d, json_text(caption, ""), json_text_size(caption), s, source, a, out)
            : chat_record_read(v, &rules, source, a, out);
    json_free(&v);
    return st;
}

static bool json_is_chat(const char *bytes, size_t n)
{
    json_value *v = NULL;
    if (json_parse(bytes, n, "json", &v) != ST_OK)
        return true; /* its fault is told when it is read */
    const bool chat =
        json_find(v, "messages") || json_find(v, "conversations") || json_find(v, "question");
    json_free(&v);
    return chat;
}

/* --- scan --- */

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
        st = read_words(d, s, k->words[s->kind], (size_t)s->words.bytes, copy, &a, &r);
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

static status add_image(scanning *k, const tar_member *m)
{
    webdataset *d = k->d;
    if (d->n_images == INT32_MAX)
        return FAIL(ST_BAD_INPUT, "more than %d images", INT32_MAX);
    TRY(array_room((void **)&d->images, d->n_images, &d->image_capacity, sizeof *d->images));
    web_image *x = &d->images[d->n_images];
    *x = (web_image){.at = {m->offset, m->bytes}, .shard = k->shard};
    TRY(text_pool_format(&d->texts, &x->name, "%s:%s", name_list_at(&d->shards, k->shard),
                         m->name));
    d->n_images++;
    k->s.n_images++;
    return ST_OK;
}

static status read_place(int fd, const char *path, member_place at, char **out)
{
    char *bytes = (char *)malloc((size_t)at.bytes + 1);
    if (!bytes)
        return FAIL(ST_NO_MEMORY, "no memory for %lld bytes", (long long)at.bytes);
    for (int64_t done = 0; done < at.bytes;) {
        const ssize_t n = pread(fd, bytes + done, (size_t)(at.bytes - done), at.offset + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            free(bytes);
            return FAIL_AT(ST_BAD_INPUT, path, -1, at.offset, "can not be read: %s",
                           n < 0 ? strerror(errno) : "it became shorter");
        }
        done += n;
    }
    bytes[at.bytes] = 0;
    *out = bytes;
    return ST_OK;
}

static status add_words(scanning *k, words_kind kind, const tar_member *m, int fd)
{
    if (m->bytes > MAX_WORDS)
        return blame(k->d, &k->s, "its words are longer than 64 MiB", false);
    if (k->words[kind])
        return ST_OK; /* of two of a kind the ending was seen, or differs: the first counts */
    k->found[kind] = (member_place){m->offset, m->bytes};
    return read_place(fd, name_list_at(&k->d->shards, k->shard), k->found[kind], &k->words[kind]);
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
    hasher_add(k->h, m->name, strlen(m->name) + 1);
    hasher_add_u64(k->h, (uint64_t)m->bytes);
    if (snprintf(ending, sizeof ending, "/%s/", dot + 1) < (int)sizeof ending &&
        strlen(k->endings) + strlen(ending) < sizeof k->endings) {
        if (strstr(k->endings, ending))
            return blame(k->d, &k->s, "two members of one name", false);
        strcat(k->endings, ending + 1);
    }
    if (is_image(last))
        return add_image(k, m);
    const words_kind kind = kind_of(last);
    return kind ? add_words(k, kind, m, fd) : ST_OK;
}

/* --- shards --- */

static status add_shard(void *user, const char *path)
{
    webdataset *d = (webdataset *)user;
    const char *under = path + strlen(d->root);
    int64_t ignored;
    under += *under == '/';
    return name_list_append(&d->shards, under, strlen(under), &ignored);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static status shards_of_folder(webdataset *d, const conf *c)
{
    struct dirent *entry;
    char **names = NULL;
    int64_t n = 0, capacity = 0, others = 0, ignored;
    status st = ST_OK;
    DIR *dir = opendir(d->root);
    if (!dir)
        return FAIL_IN(ST_NO_INPUT, d->root, "data.path can not be read as a folder: %s",
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
        qsort(names, (size_t)n, sizeof *names, by_name);
    for (int64_t k = 0; k < n && st == ST_OK; k++)
        st = name_list_append(&d->shards, names[k], strlen(names[k]), &ignored);
done:
    for (int64_t k = 0; k < n; k++)
        free(names[k]);
    free(names);
    closedir(dir);
    return st;
}

static status find_shards(webdataset *d, const conf *c)
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

static status scan(webdataset *d, hasher *h)
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

static status web_open(const conf *c, dataset **out)
{
    status st;
    hasher *h = NULL;
    if (c->data_group == GROUP_CONVERSATION)
        return FAIL(ST_CONFIG, "data.group conversation is for data.format vqav2; use none");
    if (c->data_overlong == OVERLONG_SPLIT)
        return FAIL(ST_CONFIG, "data.overlong split is for data.format text: use refuse");
    webdataset *d = (webdataset *)calloc(1, sizeof *d);
    if (!d)
        return FAIL(ST_NO_MEMORY, "no memory for a data set");
    d->base.v = &dataset_webdataset;
    d->limit = c->data_limit;
    d->prompt = strdup(c->data_prompt);
    if (!d->prompt) {
        st = FAIL(ST_NO_MEMORY, "no memory for a text");
        goto done;
    }
    TRY_OR(done, chat_rules_of(c, &d->rules));
    TRY_OR(done, find_shards(d, c));
    TRY_OR(done, hasher_new(&h));
    hasher_add(h, "webdataset", 10);
    hasher_add_u64(h, (uint64_t)c->data_loss_on);
    hasher_add_u64(h, c->data_trim);
    hasher_add(h, c->data_stage_weights, strlen(c->data_stage_weights) + 1);
    hasher_add(h, c->data_prompt, strlen(c->data_prompt) + 1);
    TRY_OR(done, scan(d, h));
    hasher_add_u64(h, (uint64_t)d->n);
    d->identity = hasher_value(h);
    d->numbers = (int32_t *)malloc(((size_t)d->n_images + 1) * sizeof *d->numbers);
    if (!d->numbers) {
        st = FAIL(ST_NO_MEMORY, "no memory for a data set");
        goto done;
    }
    for (int64_t j = 0; j < d->n_images; j++)
        d->numbers[j] = (int32_t)j;
    if (d->n == 0)
        st = FAIL_IN(ST_BAD_INPUT, c->data_path, "the tar files hold no sample");
done:
    hasher_free(&h);
    if (st == ST_OK)
        *out = &d->base;
    else
        web_close(&d->base);
    return st;
}

/* --- samples --- */

static int64_t web_samples(const dataset *d)
{
    return as_web(d)->n;
}

static int64_t web_images(const dataset *d)
{
    return as_web(d)->n_images;
}

static const char *web_image_path(const dataset *d, int64_t j)
{
    return text_pool_at(&as_web(d)->texts, as_web(d)->images[j].name);
}

static void web_place(const dataset *base, int64_t j, image_place *out)
{
    const webdataset *d = as_web(base);
    const web_image *x = &d->images[j];
    snprintf(out->path, sizeof out->path, "%s", name_list_at(&d->shards, x->shard));
    out->offset = x->at.offset;
    out->bytes = x->at.bytes;
}

static const char *web_root(const dataset *d)
{
    return as_web(d)->root;
}

static hash128 web_identity(const dataset *d)
{
    return as_web(d)->identity;
}

static status web_outline(const dataset *base, int64_t i, arena *a, sample *out)
{
    const webdataset *d = as_web(base);
    if (i < 0 || i >= d->n)
        return FAIL(ST_BAD_INPUT, "sample %" PRId64 " of %" PRId64, i, d->n);
    const web_sample *s = &d->samples[i];
    (void)a;
    *out = (sample){
        .id = (uint64_t)i,
        .name = text_pool_at(&d->texts, s->name),
        .cause = s->cause ? text_pool_at(&d->texts, s->cause) : NULL,
        .images = d->numbers + s->first_image,
        .n_images = s->cause ? 0 : s->n_images,
        .text_bytes = s->words.bytes,
    };
    return ST_OK;
}

static status web_get(const dataset *base, int64_t i, arena *a, sample *out)
{
    const webdataset *d = as_web(base);
    sample x;
    TRY(web_outline(base, i, a, &x));
    if (x.cause) {
        *out = x;
        return ST_OK;
    }
    const web_sample *s = &d->samples[i];
    char path[2 * TAR_NAME_MAX], *bytes;
    chat_record r;
    snprintf(path, sizeof path, "%s/%s", d->root, name_list_at(&d->shards, s->shard));
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(ST_NO_INPUT, path, "can not open: %s", strerror(errno));
    status st = read_place(fd, path, s->words, &bytes);
    close(fd);
    TRY(st);
    st = read_words(d, s, bytes, (size_t)s->words.bytes, x.name, a, &r);
    free(bytes);
    if (st != ST_OK)
        return status_context(st, "changed while it was in use");
    x.turns = r.turns;
    x.n_turns = r.n_turns;
    *out = x;
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
    .root = web_root,
    .identity = web_identity,
};
