/* SPDX-License-Identifier: Apache-2.0 */
/* chat_record.c: the images and videos that a record names, collected before it is known where its
 * texts show them. Internal to chat_record.c. */
#include "prepd/dataset/adapters/chat_record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum chat_kind { CHAT_IMAGE, CHAT_VIDEO, CHAT_KINDS } chat_kind;

/* "image" and "video": the keys of records, the types of parts and, inside < >, the marks in texts.
 */
extern const char *const chat_words[CHAT_KINDS];

typedef struct chat_names {
    chat_item *items; /* [count] in the arena */
    int32_t count, capacity;
} chat_names;

/* Reads the names of images and videos, and the rates of videos. */

enum { MAX_NAMES = 4096 }; /* of a sample, for each kind */
static const double MIN_RATE = 1e-6,
                    MAX_RATE = 1e6; /* so that the time of a frame can be written out */

const char *const chat_words[CHAT_KINDS] = {"image", "video"};

/* Adds a copy of an item. */
static status chat_names_put(chat_names *list, chat_item item, const char *source, arena *memory)
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

/* Adds one name, given as a text or as {"path": text}. `owner` is the object in which a video's
 * rate may stand. ST_BAD_INPUT, with `source` before it, for a name that is empty or is not a
 * file's, for a wrong rate, and for too many names. */
static status chat_names_add(chat_names *list, chat_kind kind, const json_value *name,
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

/* Adds what the record lists beside its messages, under "image" and "images" or under "video" and
 * "videos": a name, or an array of names. */
static status chat_names_list(chat_names *list, chat_kind kind, const json_value *record,
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

/* Reads a record of any of the forms of chat_record.h.
 *
 * First the names that the record lists are collected. Then its messages are read in order, and
 * each mark (<image>, <video>) and each unnamed part takes the next name of its
 * kind. At the end there must be as many of them as names. */

enum { MARK_BYTES = sizeof "<image>" - 1 }; /* both marks have this length */
static const char *const marks[CHAT_KINDS] = {"<image>", "<video>"};

typedef struct reading {
    const chat_rules *rules;
    const char *source;
    arena *memory;
    chat_record record;
    chat_names listed[CHAT_KINDS]; /* names that stand beside the messages */
    int32_t shown[CHAT_KINDS];     /* how many of those a mark or a part has taken */
    chat_names images;             /* in the order in which they are shown */
    int32_t n_images;              /* how many were shown; also with rules->outside */
    int32_t stage;                 /* texts of the assistant so far */
} reading;

/* --- rules --- */

status chat_rules_of(const conf *options, chat_rules *out)
{
    chat_rules rules = {.last_only = options->data_loss_on == LOSS_ON_LAST,
                        .trim = options->data_trim};
    for (const char *at = options->data_stage_weights; *at;) {
        char *end;
        const double weight = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(weight >= 0 && weight <= 1e6) ||
            rules.n_stages == MAX_STAGES)
            return FAIL_IN(
                ST_CONFIG, conf_place(options),
                "data.stage_weights: \"%.100s\" is not a list of up to %d numbers from 0 to "
                "1e6, such as 0.2,0.3,1",
                options->data_stage_weights, MAX_STAGES);
        rules.stage_weight[rules.n_stages++] = (float)weight;
        at = end + (*end == ',');
    }
    *out = rules;
    return ST_OK;
}

static float stage_weight(const chat_rules *rules, int32_t stage)
{
    if (rules->n_stages == 0)
        return 1.0F;
    return rules->stage_weight[stage < rules->n_stages ? stage : rules->n_stages - 1];
}

/* --- images --- */

static chat_kind kind_outside(const reading *reader, int32_t image)
{
    return reader->rules->outside_video[image] ? CHAT_VIDEO : CHAT_IMAGE;
}

static int32_t n_listed(const reading *reader, chat_kind kind)
{
    int32_t count = reader->listed[kind].count;
    for (int32_t i = 0; reader->rules->outside && i < reader->rules->n_outside; i++)
        count += kind_outside(reader, i) == kind;
    return count;
}

/* Shows the next image of this kind here. If there is none left, chat_record_read says so once all
 * are counted. */
static status show_next(reading *reader, chat_kind kind, part *out)
{
    const int32_t next = reader->shown[kind]++;
    if (reader->rules->outside && reader->n_images < reader->rules->n_outside &&
        kind_outside(reader, reader->n_images) != kind)
        return FAIL_IN(ST_BAD_INPUT, reader->source,
                       "its texts show %s as number %d, but that member is of the other kind",
                       marks[kind], (int)reader->n_images + 1);
    if (next < reader->listed[kind].count)
        TRY(chat_names_put(&reader->images, reader->listed[kind].items[next], reader->source,
                           reader->memory));
    *out = (part){.image = reader->n_images++};
    return ST_OK;
}

static status list_images(reading *reader, const json_value *value)
{
    const json_value *id = json_given(value, "img_id");
    chat_names *images = &reader->listed[CHAT_IMAGE];
    if (reader->rules->outside)
        return ST_OK;
    TRY(chat_names_list(&reader->listed[CHAT_VIDEO], CHAT_VIDEO, value, reader->source,
                        reader->memory));
    TRY(chat_names_list(images, CHAT_IMAGE, value, reader->source, reader->memory));
    if (images->count == 0 && id && json_text_size(id)) {
        static const char suffix[] = ".jpg"; /* Kvasir-VQA names its files so */
        const size_t count = json_text_size(id);
        char *name;
        TRY(arena_alloc(reader->memory, count + sizeof suffix, (void **)&name));
        memcpy(name, json_text(id, ""), count);
        memcpy(name + count, suffix, sizeof suffix);
        TRY(chat_names_put(images, (chat_item){.name = name}, reader->source, reader->memory));
    }
    return ST_OK;
}

/* --- texts --- */

static bool is_space(char letter)
{
    return letter == ' ' || (letter >= '\t' && letter <= '\r');
}

static status put_text(const reading *reader, const char *text, size_t length, part *parts,
                       int32_t *n_parts)
{
    char *copy;
    if (reader->rules->trim) {
        while (length && is_space(*text))
            text++, length--;
        while (length && is_space(text[length - 1]))
            length--;
    }
    if (length == 0)
        return ST_OK;
    TRY(arena_strndup(reader->memory, text, length, &copy));
    parts[(*n_parts)++] = (part){copy, (int64_t)length, -1};
    return ST_OK;
}

/* The first mark of either kind; NULL if there is none. */
static const char *find_mark(const char *text, size_t length, chat_kind *out)
{
    const char *first = NULL;
    for (int kind = 0; kind < CHAT_KINDS; kind++) {
        const char *at = (const char *)memmem(text, length, marks[kind], MARK_BYTES);
        if (at && (!first || at < first)) {
            first = at;
            *out = (chat_kind)kind;
        }
    }
    return first;
}

/* Splits a user's text at its marks, each of which is the next image or video. `parts` has room for
 * two parts for each mark and one more. */
static status split_text(reading *reader, const char *text, size_t length, part *parts,
                         int32_t *n_parts)
{
    const char *mark;
    chat_kind kind;
    while ((mark = find_mark(text, length, &kind))) {
        TRY(put_text(reader, text, (size_t)(mark - text), parts, n_parts));
        TRY(show_next(reader, kind, &parts[(*n_parts)++]));
        length -= (size_t)(mark - text) + MARK_BYTES;
        text = mark + MARK_BYTES;
    }
    return put_text(reader, text, length, parts, n_parts);
}

static size_t count_marks(const char *text, size_t length)
{
    size_t found = 0;
    chat_kind kind;
    for (const char *at = text, *mark; (mark = find_mark(at, length - (size_t)(at - text), &kind));
         at = mark + MARK_BYTES)
        found++;
    return found;
}

static status check_marks(const reading *reader, int role, const char *text, size_t length)
{
    chat_kind kind;
    if (role != ROLE_USER && find_mark(text, length, &kind))
        return FAIL_IN(ST_BAD_INPUT, reader->source,
                       "%s stands in a turn of the %s, but only the user shows images", marks[kind],
                       role == ROLE_SYSTEM ? "system" : "assistant");
    return ST_OK;
}

/* --- turns --- */

static status read_role(const reading *reader, const json_value *message, int *out)
{
    static const struct {
        const char *name;
        int role;
    } names[] = {
        {"system", ROLE_SYSTEM}, {"user", ROLE_USER},           {"human", ROLE_USER},
        {"gpt", ROLE_ASSISTANT}, {"assistant", ROLE_ASSISTANT},
    };
    const json_value *value = json_given(message, "role");
    const char *name = json_text(value ? value : json_find(message, "from"), NULL);
    if (!name)
        return FAIL_IN(ST_BAD_INPUT, reader->source, "a message has neither \"role\" nor \"from\"");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].role;
            return ST_OK;
        }
    return FAIL_IN(ST_BAD_INPUT, reader->source,
                   "role \"%.40s\": expected system, user, human, assistant or gpt", name);
}

static status read_weight(const reading *reader, const json_value *value, float otherwise,
                          float *out)
{
    const json_value *member = json_given(value, "weight");
    *out = otherwise;
    if (!member)
        return ST_OK;
    const double weight = json_real(member, -1);
    if (!(weight >= 0 && weight <= 1e6))
        return FAIL_IN(ST_BAD_INPUT, reader->source, "\"weight\": expected a number from 0 to 1e6");
    *out = (float)weight;
    return ST_OK;
}

/* A part that is an image or a video: it has its own name, or it is the next of the list. */
static status put_image_part(reading *reader, chat_kind kind, const json_value *value, part *parts,
                             int32_t *n_parts)
{
    const json_value *name = json_given(value, chat_words[kind]),
                     *url = json_given(value, "image_url");
    part *out = &parts[(*n_parts)++];
    if (kind == CHAT_IMAGE && url)
        name = json_typeof(url) == JSON_OBJECT ? json_given(url, "url") : url;
    if (!name)
        name = json_given(value, "path");
    if (reader->rules->outside)
        name = NULL;
    if (!name)
        return show_next(reader, kind, out);
    if (reader->listed[kind].count > 0)
        return FAIL_IN(ST_BAD_INPUT, reader->source,
                       "%ss are both listed beside the messages and named inside them",
                       chat_words[kind]);
    TRY(chat_names_add(&reader->images, kind, name, value, reader->source, reader->memory));
    *out = (part){.image = reader->n_images++};
    return ST_OK;
}

/* Adds a text of any role. A text of the assistant is a stage and gets a weight: its own, else that
 * of its message (`weight`, -1 for none), else that of data.stage_weights. */
static status put_any_text(reading *reader, turn *said, const json_value *value,
                           const json_value *owner, float weight, float *weights)
{
    const char *text = json_text(value, NULL);
    const size_t count = json_text_size(value);
    char *copy;
    if (!text)
        return FAIL_IN(ST_BAD_INPUT, reader->source, "expected a text in a message, found %s",
                       value ? json_type_name(json_typeof(value)) : "none");
    TRY(check_marks(reader, said->role, text, count));
    if (said->role == ROLE_USER)
        return split_text(reader, text, count, said->parts, &said->n_parts);
    if (said->role == ROLE_ASSISTANT) {
        if (weight < 0)
            weight = stage_weight(reader->rules, reader->stage);
        reader->stage++;
        TRY(read_weight(reader, owner, weight, &weights[said->n_parts]));
    }
    TRY(arena_strndup(reader->memory, text, count, &copy));
    said->parts[said->n_parts++] = (part){copy, (int64_t)count, -1};
    return ST_OK;
}

/* Whether a part is an image or a video, and which: by its "type", or else by its members. */
static bool is_image_part(const json_value *value, chat_kind *out)
{
    static const struct {
        const char *type;
        chat_kind kind; /* CHAT_KINDS: neither */
    } types[] = {{"text", CHAT_KINDS},
                 {"video", CHAT_VIDEO},
                 {"image", CHAT_IMAGE},
                 {"image_url", CHAT_IMAGE}};
    const char *type = json_text(json_find(value, "type"), "");
    *out = json_given(value, "video")                                     ? CHAT_VIDEO
           : json_given(value, "image") || json_given(value, "image_url") ? CHAT_IMAGE
                                                                          : CHAT_KINDS;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i].type) == 0)
            *out = types[i].kind;
    return *out != CHAT_KINDS;
}

static size_t room_for(const json_value *content)
{
    size_t room = 1;
    if (json_typeof(content) == JSON_TEXT)
        return 2 * count_marks(json_text(content, ""), json_text_size(content)) + 1;
    for (size_t i = 0; i < json_count(content); i++) {
        const json_value *value = json_item(content, i);
        const json_value *text = json_typeof(value) == JSON_TEXT ? value : json_find(value, "text");
        room += 2 * count_marks(json_text(text, ""), json_text_size(text)) + 1;
    }
    return room;
}

static status read_content(reading *reader, const json_value *message, const json_value *content,
                           turn *said)
{
    float *weights, whole; /* -1: the message has no weight of its own */
    TRY(read_weight(reader, message, -1.0F, &whole));
    TRY(arena_calloc(reader->memory, room_for(content), sizeof *said->parts,
                     (void **)&said->parts));
    TRY(arena_calloc(reader->memory, room_for(content), sizeof *weights, (void **)&weights));
    if (said->role == ROLE_ASSISTANT)
        said->weights = weights;
    if (json_typeof(content) == JSON_TEXT)
        return put_any_text(reader, said, content, message, whole, weights);
    for (size_t i = 0; i < json_count(content); i++) {
        const json_value *value = json_item(content, i);
        chat_kind kind;
        if (json_typeof(value) == JSON_TEXT)
            TRY(put_any_text(reader, said, value, NULL, whole, weights));
        else if (said->role == ROLE_USER && is_image_part(value, &kind))
            TRY(put_image_part(reader, kind, value, said->parts, &said->n_parts));
        else if (json_given(value, "text"))
            TRY(put_any_text(reader, said, json_find(value, "text"), value, whole, weights));
        else
            return FAIL_IN(ST_BAD_INPUT, reader->source,
                           "part %zu of a message is neither a text nor an image or video of the "
                           "user",
                           i + 1);
    }
    return ST_OK;
}

static status read_message(reading *reader, const json_value *value, turn *said)
{
    if (json_typeof(value) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, reader->source, "expected an object as a message, found %s",
                       json_type_name(json_typeof(value)));
    TRY(read_role(reader, value, &said->role));
    if (json_count(json_find(value, "tool_calls")))
        return FAIL_IN(ST_BAD_INPUT, reader->source,
                       "it calls tools (\"tool_calls\"), which are not supported");
    const json_value *content = json_given(value, "content");
    if (!content)
        content = json_given(value, "value");
    if (!content || (json_typeof(content) != JSON_TEXT && json_typeof(content) != JSON_ARRAY))
        return FAIL_IN(
            ST_BAD_INPUT, reader->source,
            "expected a text or a list as \"content\" (or \"value\") of a message, found %s",
            content ? json_type_name(json_typeof(content)) : "none");
    return read_content(reader, value, content, said);
}

/* Reads {"question", "answer"} as two turns. The images and videos come first, unless the question
 * has marks for them; the answer may be a list of stages. */
static status read_question(reading *reader, const json_value *value)
{
    const json_value *question = json_find(value, "question"), *answer = json_find(value, "answer");
    turn *user = &reader->record.turns[0], *assistant = &reader->record.turns[1];
    float none[1];
    const char *text = json_text(question, "");
    const size_t count = json_text_size(question), shown = count_marks(text, count);
    if (json_typeof(answer) != JSON_TEXT && json_typeof(answer) != JSON_ARRAY)
        return FAIL_IN(ST_BAD_INPUT, reader->source,
                       "expected a text or a list as \"answer\", found %s",
                       json_type_name(json_typeof(answer)));
    user->role = ROLE_USER;
    assistant->role = ROLE_ASSISTANT;
    const int32_t n_images = n_listed(reader, CHAT_IMAGE), n_videos = n_listed(reader, CHAT_VIDEO);
    TRY(arena_calloc(reader->memory, 2 * shown + 1 + (size_t)n_images + (size_t)n_videos,
                     sizeof *user->parts, (void **)&user->parts));
    for (int32_t i = 0; shown == 0 && i < n_images + n_videos; i++) {
        const chat_kind kind = reader->rules->outside ? kind_outside(reader, i)
                               : i < n_images         ? CHAT_IMAGE
                                                      : CHAT_VIDEO;
        TRY(show_next(reader, kind, &user->parts[user->n_parts++]));
    }
    TRY(put_any_text(reader, user, question, NULL, 1.0F, none));
    return read_content(reader, value, answer, assistant);
}

/* Which turns count in the loss: every turn of the assistant, or the last one (data.loss_on). */
static void choose_trained(reading *reader)
{
    bool last = true;
    for (int32_t i = reader->record.n_turns - 1; i >= 0; i--) {
        turn *said = &reader->record.turns[i];
        if (said->role != ROLE_ASSISTANT)
            continue;
        said->trained = last || !reader->rules->last_only;
        last = false;
    }
}

/* The array of turns; NULL if there is none. */
static const json_value *turns_of(const json_value *value)
{
    const json_value *list = json_given(value, "messages");
    return list ? list : json_given(value, "conversations");
}

static bool is_question(const json_value *value)
{
    return !turns_of(value) && json_given(value, "question") && json_given(value, "answer");
}

bool chat_record_is(const json_value *value)
{
    return turns_of(value) || is_question(value);
}

status chat_record_read(const json_value *value, const chat_rules *rules, const char *source,
                        arena *memory, chat_record *out)
{
    reading reader = {.rules = rules, .source = source, .memory = memory, .record = {.id = ""}};
    const json_value *list = turns_of(value), *id = json_find(value, "id");
    const bool question = is_question(value);
    char *copy;
    if (!question && (!list || json_typeof(list) != JSON_ARRAY || json_count(list) == 0))
        return FAIL_IN(ST_BAD_INPUT, source,
                       "expected \"messages\" or \"conversations\" (a list of turns), or "
                       "\"question\" and \"answer\"; found %s",
                       !list              ? "none of these"
                       : json_count(list) ? "something that is not a list"
                                          : "an empty list");
    if (id && json_typeof(id) == JSON_TEXT) {
        TRY(arena_strndup(memory, json_text(id, ""), json_text_size(id), &copy));
        reader.record.id = copy;
    }
    reader.record.n_turns = question ? 2 : (int32_t)json_count(list);
    TRY(arena_calloc(memory, (size_t)reader.record.n_turns, sizeof *reader.record.turns,
                     (void **)&reader.record.turns));
    TRY(list_images(&reader, value));
    for (int32_t i = 0; !question && i < reader.record.n_turns; i++)
        TRY(read_message(&reader, json_item(list, (size_t)i), &reader.record.turns[i]));
    if (question)
        TRY(read_question(&reader, value));
    for (int kind = 0; kind < CHAT_KINDS; kind++)
        if (reader.shown[kind] != n_listed(&reader, (chat_kind)kind))
            return FAIL_IN(ST_BAD_INPUT, source, "its texts show %d %ss (%s), but %d are listed",
                           (int)reader.shown[kind], chat_words[kind], marks[kind],
                           (int)n_listed(&reader, (chat_kind)kind));
    reader.record.images = reader.images.items;
    reader.record.n_images = reader.n_images;
    choose_trained(&reader);
    *out = reader.record;
    return ST_OK;
}
