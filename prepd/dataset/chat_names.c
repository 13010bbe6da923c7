/* chat_names.c: reads the names of images and videos, and the rates of videos. */
#include "prepd/dataset/chat_names.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 4096 }; /* of a sample, for each kind */
static const double MIN_RATE = 1e-6,
                    MAX_RATE = 1e6; /* so that the time of a frame can be written out */

const char *const chat_words[CHAT_KINDS] = {"image", "video"};

status chat_names_put(chat_names *list, chat_item item, const char *source, arena *memory)
{
    if (list->count == 2 * MAX_NAMES)
        return FAIL_IN(ST_BAD_INPUT, source, "it has more than %d images and videos",
                       2 * MAX_NAMES);
    if (list->count == list->capacity) {
        const int32_t more = list->capacity ? 2 * list->capacity : 4;
        chat_item *grown;
        TRY(arena_calloc(memory, (size_t)more, sizeof *grown, (void **)&grown));
        for (int32_t i = 0; i < list->count; i++)
            grown[i] = list->items[i];
        list->items = grown;
        list->capacity = more;
    }
    list->items[list->count++] = item;
    return ST_OK;
}

/* Reads "fps" or "sample_fps", a number or a text that holds one; 0 if there is neither. */
static status read_rate(const json_value *owner, const char *source, double *out)
{
    const json_value *value = json_given(owner, "fps");
    if (!value)
        value = json_given(owner, "sample_fps");
    *out = 0;
    if (!value)
        return ST_OK;
    const char *text = json_text(value, NULL);
    char *end = NULL;
    const double rate = text ? strtod(text, &end) : json_real(value, -1);
    if (!(rate >= MIN_RATE && rate <= MAX_RATE) || (text && *end))
        return FAIL_IN(ST_BAD_INPUT, source,
                       "\"fps\" of a video: expected a number of frames per second");
    *out = rate;
    return ST_OK;
}

status chat_names_add(chat_names *list, chat_kind kind, const json_value *name,
                      const json_value *owner, const char *source, arena *memory)
{
    const char *text = json_text(name, NULL), *word = chat_words[kind];
    chat_item item = {.video = kind == CHAT_VIDEO};
    char *copy;
    if (json_typeof(name) == JSON_OBJECT) { /* {"path": ...}, from Hugging Face */
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
        return FAIL_IN(ST_BAD_INPUT, source,
                       "%s \"%.60s\" is not a file name; only local files can be read", word, text);
    if (list->count == MAX_NAMES)
        return FAIL_IN(ST_BAD_INPUT, source, "it has more than %d %ss", MAX_NAMES, word);
    if (item.video)
        TRY(read_rate(owner, source, &item.fps));
    TRY(arena_strndup(memory, text, strlen(text), &copy));
    item.name = copy;
    return chat_names_put(list, item, source, memory);
}

status chat_names_list(chat_names *list, chat_kind kind, const json_value *record,
                       const char *source, arena *memory)
{
    static const char *const keys[CHAT_KINDS][2] = {{"image", "images"}, {"video", "videos"}};
    for (int i = 0; i < 2; i++) {
        const json_value *value = json_given(record, keys[kind][i]);
        if (!value)
            continue;
        if (json_typeof(value) != JSON_ARRAY)
            TRY(chat_names_add(list, kind, value, record, source, memory));
        for (size_t k = 0; json_typeof(value) == JSON_ARRAY && k < json_count(value); k++)
            TRY(chat_names_add(list, kind, json_item(value, k), record, source, memory));
    }
    return ST_OK;
}
