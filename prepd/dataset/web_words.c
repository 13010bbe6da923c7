/* web_words.c: turns the bytes of a .json, .txt or .cls member into the turns of a sample. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/utf8.h"
#include "prepd/dataset/webdataset.h"

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

status web_parse_words(const char *bytes, size_t length, const char *source, json_value **out)
{
    char what[STATUS_MESSAGE_MAX];
    if (json_parse(bytes, length, source, out) == ST_OK)
        return ST_OK;
    const long long line = (long long)status_last()->line;
    snprintf(what, sizeof what, "%s", status_last()->message);
    return FAIL_IN(ST_BAD_INPUT, source, ".json, line %lld: %s", line, what);
}

status web_read_record(const webdataset *set, const web_sample *from, const json_value *record,
                       const char *source, arena *memory, chat_record *out)
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
