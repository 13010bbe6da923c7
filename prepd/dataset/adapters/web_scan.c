/* SPDX-License-Identifier: Apache-2.0 */
/* web_scan.c: reads the headers of the members of all tars, once. Members that follow each other
 * and have the same key (the name up to the first dot of its last part) are one sample, or one for
 * each record of an array in their .json. */
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
#include "prepd/dataset/adapters/webdataset.h"

/* Turns the bytes of a .json, .txt or .cls member into the turns of a sample. */

/* Makes turns of an answer without a question: the user shows the images and says data.prompt. */
static status answer_alone(const webdataset *set, const char *text, size_t length,
                           const web_sample *from, const char *source, arena *memory,
                           chat_record *out)
{
    chat_record record = {.id = "", .n_turns = 2, .n_images = from->n_images};
    char *copy;
    part *parts;
    while (length && strchr(" \t\r\n", text[length - 1]))
        length--;
    while (length && strchr(" \t\r\n", *text))
        text++, length--;
    if (length == 0)
        return FAIL_IN(ST_BAD_INPUT, source, "its text is empty");
    if (!utf8_valid(text, length))
        return FAIL_IN(ST_BAD_INPUT, source, "its text is not UTF-8");
    if (from->n_images == 0 && !set->prompt[0])
        return FAIL_IN(ST_BAD_INPUT, source,
                       "the sample has neither an image nor a question; data.prompt can give one");
    TRY(arena_strndup(memory, text, length, &copy));
    TRY(arena_calloc(memory, 2, sizeof *record.turns, (void **)&record.turns));
    TRY(arena_calloc(memory, (size_t)from->n_images + 2, sizeof *parts, (void **)&parts));
    int32_t k = 0;
    for (; k < from->n_images; k++)
        parts[k] = (part){.image = k};
    if (set->prompt[0])
        parts[k++] = (part){set->prompt, (int64_t)strlen(set->prompt), -1};
    record.turns[0] = (turn){.role = ROLE_USER, .parts = parts, .n_parts = k};
    parts[k] = (part){copy, (int64_t)length, -1};
    record.turns[1] =
        (turn){.role = ROLE_ASSISTANT, .trained = true, .parts = parts + k, .n_parts = 1};
    *out = record;
    return ST_OK;
}

/* The same in two steps, for a .json that may be an array: parses it, and reads one of its records.
 * The caller frees the value. */
static status web_parse_words(const char *bytes, size_t length, const char *source,
                              json_value **out)
{
    char what[STATUS_MESSAGE_MAX];
    if (json_parse(bytes, length, source, out) == ST_OK)
        return ST_OK;
    const long long line = (long long)status_last()->line;
    snprintf(what, sizeof what, "%s", status_last()->message);
    return FAIL_IN(ST_BAD_INPUT, source, ".json, line %lld: %s", line, what);
}

static status web_read_record(const webdataset *set, const web_sample *from,
                              const json_value *record, const char *source, arena *memory,
                              chat_record *out)
{
    const json_value *caption = json_find(record, "caption");
    chat_rules rules = set->rules;
    bool *video;
    TRY(arena_calloc(memory, (size_t)from->n_images + 1, sizeof *video, (void **)&video));
    for (int32_t k = 0; k < from->n_images; k++)
        video[k] = set->images[from->first_image + k].video;
    rules.outside = true;
    rules.n_outside = from->n_images;
    rules.outside_video = video;
    return !chat_record_is(record) && caption && json_typeof(caption) == JSON_TEXT
               ? answer_alone(set, json_text(caption, ""), json_text_size(caption), from, source,
                              memory, out)
               : chat_record_read(record, &rules, source, memory, out);
}

status web_read_words(const webdataset *set, const web_sample *from, const char *bytes,
                      size_t length, const char *source, arena *memory, chat_record *out)
{
    json_value *value = NULL;
    if (from->kind != WORDS_JSON)
        return answer_alone(set, bytes, length, from, source, memory, out);
    TRY(web_parse_words(bytes, length, source, &value));
    const json_value *record = from->n_records ? json_item(value, (size_t)from->record) : value;
    const status st = web_read_record(set, from, record, source, memory, out);
    json_free(&value);
    return st;
}

status web_read_place(int fd, const char *path, member_place at, char **out)
{
    char *bytes = (char *)malloc((size_t)at.bytes + 1);
    if (!bytes)
        return FAIL(ST_NO_MEMORY, "no memory for %lld bytes", (long long)at.bytes);
    const int64_t got = file_read_all(fd, bytes, (size_t)at.bytes, at.offset);
    if (got != at.bytes) {
        free(bytes);
        return FAIL_AT(ST_BAD_INPUT, path, -1, at.offset, "a member cannot be read: %s",
                       got < 0 ? strerror(errno) : "the file became shorter");
    }
    bytes[at.bytes] = 0;
    *out = bytes;
    return ST_OK;
}

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
static bool json_is_chat(const char *bytes, size_t length)
{
    json_value *value = NULL;
    if (json_parse(bytes, length, "json", &value) != ST_OK)
        return true;
    const bool chat = chat_record_is(value);
    json_free(&value);
    return chat;
}

/* Gives a sample a cause, unless it has one. `named` says that the cause already names the
 * sample. */
static status blame(webdataset *set, web_sample *from, const char *cause, bool named)
{
    char name[2 * TAR_NAME_MAX] = "";
    if (from->cause)
        return ST_OK;
    if (!named)
        snprintf(name, sizeof name, "%s: ",
                 text_pool_at(&set->texts, from->name)); /* copied, because the pool moves */
    return text_pool_format(&set->texts, &from->cause, "%s%s", name, cause);
}

/* Which member gives the texts: a .json that is a conversation, else .txt,
 * else .json, else .cls. */
static words_kind choose_words(const scanning *scan)
{
    const bool json = scan->words[WORDS_JSON], txt = scan->words[WORDS_TXT];
    if (json &&
        (!txt || json_is_chat(scan->words[WORDS_JSON], (size_t)scan->found[WORDS_JSON].bytes)))
        return WORDS_JSON;
    return txt ? WORDS_TXT : scan->words[WORDS_CLS] ? WORDS_CLS : WORDS_NONE;
}

/* Adds a sample whose texts were read with this status: one that is bad gets its cause. */
static status add_sample(webdataset *set, const web_sample *from, status st)
{
    web_sample read = *from;
    if (st == ST_BAD_INPUT)
        st = blame(set, &read, status_text(), true);
    TRY(st);
    TRY(array_room((void **)&set->samples, set->count, &set->capacity, sizeof *set->samples));
    set->samples[set->count++] = read;
    return ST_OK;
}

/* Adds a sample for every record of an array. They all show the images of their key. */
static status add_records(webdataset *set, const web_sample *key, const json_value *array,
                          const char *name)
{
    const size_t count = json_count(array);
    set->any_array = true;
    if (count == 0)
        return add_sample(set, key,
                          FAIL_IN(ST_BAD_INPUT, name, "the array in its .json holds no record"));
    for (size_t k = 0; k < count && !(set->limit && set->count >= set->limit); k++) {
        web_sample from = *key;
        char source[2 * TAR_NAME_MAX + 40];
        chat_record record;
        arena memory;
        from.record = (int32_t)k;
        from.n_records = (int32_t)count;
        snprintf(source, sizeof source, "%s, record %zu", name, k + 1);
        TRY(text_pool_format(&set->texts, &from.name, "%s", source));
        arena_init(&memory, 0);
        const status st =
            web_read_record(set, &from, json_item(array, k), source, &memory, &record);
        arena_done(&memory);
        TRY(add_sample(set, &from, st));
    }
    return ST_OK;
}

/* Reads the texts of a key that has no cause yet, and adds its sample, or its samples. */
static status add_read(scanning *scan, const char *name)
{
    webdataset *set = scan->set;
    const web_sample *from = &scan->sample;
    const char *words = scan->words[from->kind];
    const size_t length = (size_t)from->words.bytes;
    json_value *value = NULL;
    chat_record record;
    arena memory;
    status st = from->kind == WORDS_NONE
                    ? FAIL_IN(ST_BAD_INPUT, name, "the sample has no .json, .txt or .cls")
                    : ST_OK;
    if (from->kind == WORDS_JSON)
        st = web_parse_words(words, length, name, &value);
    if (st == ST_OK && value && json_typeof(value) == JSON_ARRAY) {
        st = add_records(set, from, value, name);
        json_free(&value);
        return st;
    }
    arena_init(&memory, 0);
    if (st == ST_OK)
        st = value ? web_read_record(set, from, value, name, &memory, &record)
                   : web_read_words(set, from, words, length, name, &memory, &record);
    arena_done(&memory);
    json_free(&value);
    return add_sample(set, from, st);
}

static status finish_sample(scanning *scan)
{
    webdataset *set = scan->set;
    web_sample *from = &scan->sample;
    if (!scan->open)
        return ST_OK;
    scan->open = false;
    char name[2 * TAR_NAME_MAX];
    snprintf(name, sizeof name, "%s", text_pool_at(&set->texts, from->name)); /* the pool moves */
    from->kind = choose_words(scan);
    from->words = scan->found[from->kind];
    const status st = from->cause ? add_sample(set, from, ST_OK) : add_read(scan, name);
    for (int i = 0; i < WORDS_KINDS; i++) {
        if (scan->words[i])
            hasher_add(scan->hash, scan->words[i], (size_t)scan->found[i].bytes);
        free(scan->words[i]);
        scan->words[i] = NULL;
    }
    return st;
}

static status begin_sample(scanning *scan, const char *key)
{
    webdataset *set = scan->set;
    TRY(finish_sample(scan));
    if (set->limit && set->count >= set->limit) {
        scan->limit_reached = true;
        return FAIL(ST_END, "data.limit");
    }
    snprintf(scan->key, sizeof scan->key, "%s", key);
    scan->sample = (web_sample){.shard = scan->shard, .first_image = set->n_images};
    scan->open = true;
    strcpy(scan->endings, "/");
    return text_pool_format(&set->texts, &scan->sample.name, "%s:%s",
                            name_list_at(&set->shards, scan->shard), key);
}

static words_kind kind_of(const char *last)
{
    return strcasecmp(last, "json") == 0  ? WORDS_JSON
           : strcasecmp(last, "txt") == 0 ? WORDS_TXT
           : strcasecmp(last, "cls") == 0 ? WORDS_CLS
                                          : WORDS_NONE;
}

static bool is_video(const char *last)
{
    static const char *const endings[] = {"mp4", "m4v", "mov", "mkv", "webm", "avi", "ts"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (strcasecmp(last, endings[i]) == 0)
            return true;
    return false;
}

static status add_image(scanning *scan, const tar_member *member, bool video)
{
    webdataset *set = scan->set;
    if (set->n_images == INT32_MAX)
        return FAIL(ST_BAD_INPUT, "the data set has more than %d images", INT32_MAX);
    TRY(array_room((void **)&set->images, set->n_images, &set->image_capacity,
                   sizeof *set->images));
    web_image *image = &set->images[set->n_images];
    *image =
        (web_image){.at = {member->offset, member->bytes}, .shard = scan->shard, .video = video};
    set->any_video |= video;
    TRY(text_pool_format(&set->texts, &image->name, "%s:%s",
                         name_list_at(&set->shards, scan->shard), member->name));
    set->n_images++;
    scan->sample.n_images++;
    return ST_OK;
}

static status add_words(scanning *scan, words_kind kind, const tar_member *member, int fd)
{
    if (member->bytes > MAX_WORDS)
        return blame(scan->set, &scan->sample, "its text is longer than 64 MiB", false);
    if (scan->words[kind])
        return ST_OK; /* a second one with another ending, such as .a.txt: the first counts */
    scan->found[kind] = (member_place){member->offset, member->bytes};
    return web_read_place(fd, name_list_at(&scan->set->shards, scan->shard), scan->found[kind],
                          &scan->words[kind]);
}

static status on_member(void *user, const tar_member *member, int fd)
{
    scanning *scan = (scanning *)user;
    const char *slash = strrchr(member->name, '/'), *base = slash ? slash + 1 : member->name;
    const char *dot = strchr(base, '.');
    char key[TAR_NAME_MAX], ending[128];
    if (!dot || dot == base) /* it has no key, or is a hidden file: not part of a sample */
        return ST_OK;
    snprintf(key, sizeof key, "%.*s", (int)(dot - member->name), member->name);
    if (!scan->open || strcmp(key, scan->key) != 0)
        TRY(begin_sample(scan, key));
    const char *last = strrchr(dot, '.') + 1;
    hasher_add_text(scan->hash, member->name);
    hasher_add_u64(scan->hash, (uint64_t)member->bytes);
    if (snprintf(ending, sizeof ending, "/%s/", dot + 1) < (int)sizeof ending &&
        strlen(scan->endings) + strlen(ending) < sizeof scan->endings) {
        if (strstr(scan->endings, ending))
            return blame(scan->set, &scan->sample, "it has two members of the same name", false);
        strcat(scan->endings, ending + 1);
    }
    if (is_picture_ending(last) || is_video(last))
        return add_image(scan, member, is_video(last));
    const words_kind kind = kind_of(last);
    return kind ? add_words(scan, kind, member, fd) : ST_OK;
}

status web_scan(webdataset *set, hasher *hash)
{
    scanning scan = {.set = set, .hash = hash};
    status st = ST_OK;
    for (int64_t i = 0; i < set->shards.count && st == ST_OK && !scan.limit_reached; i++) {
        char path[2 * TAR_NAME_MAX];
        snprintf(path, sizeof path, "%s/%s", set->root, name_list_at(&set->shards, i));
        scan.shard = (int32_t)i;
        st = tar_read(path, on_member, &scan);
        if (scan.limit_reached)
            st = ST_OK;
        if (st == ST_OK)
            st = finish_sample(&scan);
    }
    for (int j = 0; j < WORDS_KINDS; j++)
        free(scan.words[j]);
    return st;
}
