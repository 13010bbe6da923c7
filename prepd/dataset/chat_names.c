#include "prepd/dataset/chat_names.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 4096 };                           /* of a sample, of each kind */
static const double MIN_RATE = 1e-6, MAX_RATE = 1e6; /* so that a frame's time has a text */

const char *const chat_words[CHAT_KINDS] = {"image", "video"};

status chat_names_put(chat_names *l, chat_item item, const char *source, arena *a)
{
    if (l->n == 2 * MAX_NAMES)
        return FAIL_IN(ST_BAD_INPUT, source, "more than %d images and videos", 2 * MAX_NAMES);
    if (l->n == l->capacity) {
        const int32_t more = l->capacity ? 2 * l->capacity : 4;
        chat_item *grown;
        TRY(arena_calloc(a, (size_t)more, sizeof *grown, (void **)&grown));
        for (int32_t i = 0; i < l->n; i++)
            grown[i] = l->items[i];
        l->items = grown;
        l->capacity = more;
    }
    l->items[l->n++] = item;
    return ST_OK;
}

/* "fps" or "sample_fps", a number or a text of one. */
static status read_rate(const json_value *owner, const char *source, double *out)
{
    const json_value *v = json_given(owner, "fps");
    if (!v)
        v = json_given(owner, "sample_fps");
    *out = 0;
    if (!v)
        return ST_OK;
    const char *text = json_text(v, NULL);
    char *end = NULL;
    const double rate = text ? strtod(text, &end) : json_real(v, -1);
    if (!(rate >= MIN_RATE && rate <= MAX_RATE) || (text && *end))
        return FAIL_IN(ST_BAD_INPUT, source,
                       "\"fps\" of a video: expected a number of frames per second");
    *out = rate;
    return ST_OK;
}

status chat_names_add(chat_names *l, chat_kind kind, const json_value *name,
                      const json_value *owner, const char *source, arena *a)
{
    const char *text = json_text(name, NULL), *word = chat_words[kind];
    chat_item item = {.video = kind == CHAT_VIDEO};
    char *copy;
    if (json_typeof(name) == JSON_OBJECT) { /* as data sets of Hugging Face write it */
        text = json_text(json_find(name, "path"), NULL);
        owner = name;
    }
    if (!text || !text[0])
        return FAIL_IN(ST_BAD_INPUT, source, "%s %s must be a file name, found %s",
                       kind == CHAT_IMAGE ? "an" : "a", word,
                       text ? "an empty text" : json_type_name(json_typeof(name)));
    if (strncmp(text, "file://", 7) == 0)
        text += 7;
    if (strstr(text, "://") || strncmp(text, "data:", 5) == 0)
        return FAIL_IN(ST_BAD_INPUT, source, "%s \"%.60s\" is no file name: only files are read",
                       word, text);
    if (l->n == MAX_NAMES)
        return FAIL_IN(ST_BAD_INPUT, source, "more than %d %ss", MAX_NAMES, word);
    if (item.video)
        TRY(read_rate(owner, source, &item.fps));
    TRY(arena_strndup(a, text, strlen(text), &copy));
    item.name = copy;
    return chat_names_put(l, item, source, a);
}

status chat_names_list(chat_names *l, chat_kind kind, const json_value *record, const char *source,
                       arena *a)
{
    static const char *const keys[CHAT_KINDS][2] = {{"image", "images"}, {"video", "videos"}};
    for (int i = 0; i < 2; i++) {
        const json_value *v = json_given(record, keys[kind][i]);
        if (!v)
            continue;
        if (json_typeof(v) != JSON_ARRAY)
            TRY(chat_names_add(l, kind, v, record, source, a));
        for (size_t k = 0; json_typeof(v) == JSON_ARRAY && k < json_count(v); k++)
            TRY(chat_names_add(l, kind, json_item(v, k), record, source, a));
    }
    return ST_OK;
}
