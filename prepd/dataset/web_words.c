/* web_words.c: the words of a sample of a tar, from the bytes of its member. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/utf8.h"
#include "prepd/dataset/webdataset.h"

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
    if (!utf8_valid(text, n))
        return FAIL_IN(ST_BAD_INPUT, source, "its text is not UTF-8");
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

status web_read_words(const webdataset *d, const web_sample *s, const char *bytes, size_t n,
                      const char *source, arena *a, chat_record *out)
{
    json_value *v = NULL;
    chat_rules rules = d->rules;
    bool *video;
    if (s->kind != WORDS_JSON)
        return answer_alone(d, bytes, n, s, source, a, out);
    TRY(arena_calloc(a, (size_t)s->n_images + 1, sizeof *video, (void **)&video));
    for (int32_t k = 0; k < s->n_images; k++)
        video[k] = d->images[s->first_image + k].video;
    if (json_parse(bytes, n, source, &v) != ST_OK) {
        char what[STATUS_MESSAGE_MAX];
        const long long line = (long long)status_last()->line;
        snprintf(what, sizeof what, "%s", status_last()->message);
        return FAIL_IN(ST_BAD_INPUT, source, ".json, line %lld: %s", line, what);
    }
    const json_value *caption = json_find(v, "caption");
    rules.outside = true;
    rules.n_outside = s->n_images;
    rules.outside_video = video;
    status st =
        !chat_record_is(v) && caption && json_typeof(caption) == JSON_TEXT
            ? answer_alone(d, json_text(caption, ""), json_text_size(caption), s, source, a, out)
            : chat_record_read(v, &rules, source, a, out);
    json_free(&v);
    return st;
}

status web_read_place(int fd, const char *path, member_place at, char **out)
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
            return FAIL_AT(ST_BAD_INPUT, path, -1, at.offset, "cannot be read: %s",
                           n < 0 ? strerror(errno) : "it became shorter");
        }
        done += n;
    }
    bytes[at.bytes] = 0;
    *out = bytes;
    return ST_OK;
}
