#include "prepd/dataset/chat_names.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MARK_BYTES = sizeof "<image>" - 1 }; /* of either kind */
static const char *const marks[CHAT_KINDS] = {"<image>", "<video>"};

typedef struct reading {
    const chat_rules *rules;
    const char *source;
    arena *a;
    chat_record r;
    chat_names listed[CHAT_KINDS]; /* beside the messages */
    int32_t shown[CHAT_KINDS];     /* of them, those that a mark or part stands for */
    chat_names images;             /* in the order they are shown */
    int32_t n_images;              /* their number, also where they lie outside */
    int32_t stage;                 /* assistant texts so far */
} reading;

/* --- rules --- */

status chat_rules_of(const conf *c, chat_rules *out)
{
    chat_rules r = {.last_only = c->data_loss_on == LOSS_ON_LAST, .trim = c->data_trim};
    for (const char *at = c->data_stage_weights; *at;) {
        char *end;
        const double w = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(w >= 0 && w <= 1e6) || r.n_stages == MAX_STAGES)
            return FAIL_IN(
                ST_CONFIG, conf_place(c),
                "data.stage_weights: \"%.100s\" is no list of up to %d numbers from 0 to "
                "1e6, such as 0.2,0.3,1",
                c->data_stage_weights, MAX_STAGES);
        r.stage_weight[r.n_stages++] = (float)w;
        at = end + (*end == ',');
    }
    *out = r;
    return ST_OK;
}

static float stage_weight(const chat_rules *r, int32_t stage)
{
    if (r->n_stages == 0)
        return 1.0F;
    return r->stage_weight[stage < r->n_stages ? stage : r->n_stages - 1];
}

/* --- images --- */

static chat_kind kind_outside(const reading *k, int32_t i)
{
    return k->rules->outside_video[i] ? CHAT_VIDEO : CHAT_IMAGE;
}

static int32_t n_listed(const reading *k, chat_kind kind)
{
    int32_t n = k->listed[kind].n;
    for (int32_t i = 0; k->rules->outside && i < k->rules->n_outside; i++)
        n += kind_outside(k, i) == kind;
    return n;
}

/* The next of the list is shown here; one too many is told when all are counted. */
static status show_next(reading *k, chat_kind kind, part *out)
{
    const int32_t next = k->shown[kind]++;
    if (k->rules->outside && k->n_images < k->rules->n_outside &&
        kind_outside(k, k->n_images) != kind)
        return FAIL_IN(ST_BAD_INPUT, k->source,
                       "its texts show %s as number %d, which is of the other kind", marks[kind],
                       (int)k->n_images + 1);
    if (next < k->listed[kind].n)
        TRY(chat_names_put(&k->images, k->listed[kind].items[next], k->source, k->a));
    *out = (part){.image = k->n_images++};
    return ST_OK;
}

static status list_images(reading *k, const json_value *v)
{
    const json_value *id = json_given(v, "img_id");
    chat_names *images = &k->listed[CHAT_IMAGE];
    if (k->rules->outside)
        return ST_OK;
    TRY(chat_names_list(&k->listed[CHAT_VIDEO], CHAT_VIDEO, v, k->source, k->a));
    TRY(chat_names_list(images, CHAT_IMAGE, v, k->source, k->a));
    if (images->n == 0 && id && json_text_size(id)) {
        static const char suffix[] = ".jpg"; /* of Kvasir-VQA's files */
        const size_t n = json_text_size(id);
        char *name;
        TRY(arena_alloc(k->a, n + sizeof suffix, (void **)&name));
        memcpy(name, json_text(id, ""), n);
        memcpy(name + n, suffix, sizeof suffix);
        TRY(chat_names_put(images, (chat_item){.name = name}, k->source, k->a));
    }
    return ST_OK;
}

/* --- texts --- */

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static status put_text(const reading *k, const char *text, size_t n, part *parts, int32_t *n_parts)
{
    char *copy;
    if (k->rules->trim) {
        while (n && is_space(*text))
            text++, n--;
        while (n && is_space(text[n - 1]))
            n--;
    }
    if (n == 0)
        return ST_OK;
    TRY(arena_strndup(k->a, text, n, &copy));
    parts[(*n_parts)++] = (part){copy, (int64_t)n, -1};
    return ST_OK;
}

/* The first mark of either kind, NULL if none. */
static const char *find_mark(const char *text, size_t n, chat_kind *out)
{
    const char *first = NULL;
    for (int kind = 0; kind < CHAT_KINDS; kind++) {
        const char *at = (const char *)memmem(text, n, marks[kind], MARK_BYTES);
        if (at && (!first || at < first)) {
            first = at;
            *out = (chat_kind)kind;
        }
    }
    return first;
}

/* A user's text: each mark is the next image or video. parts has room for 2 per mark and 1. */
static status split_text(reading *k, const char *text, size_t n, part *parts, int32_t *n_parts)
{
    const char *mark;
    chat_kind kind;
    while ((mark = find_mark(text, n, &kind))) {
        TRY(put_text(k, text, (size_t)(mark - text), parts, n_parts));
        TRY(show_next(k, kind, &parts[(*n_parts)++]));
        n -= (size_t)(mark - text) + MARK_BYTES;
        text = mark + MARK_BYTES;
    }
    return put_text(k, text, n, parts, n_parts);
}

static size_t count_marks(const char *text, size_t n)
{
    size_t found = 0;
    chat_kind kind;
    for (const char *at = text, *mark; (mark = find_mark(at, n - (size_t)(at - text), &kind));
         at = mark + MARK_BYTES)
        found++;
    return found;
}

static status check_marks(const reading *k, int role, const char *text, size_t n)
{
    chat_kind kind;
    if (role != ROLE_USER && find_mark(text, n, &kind))
        return FAIL_IN(ST_BAD_INPUT, k->source,
                       "%s stands in a turn of the %s; images are shown by the user", marks[kind],
                       role == ROLE_SYSTEM ? "system" : "assistant");
    return ST_OK;
}

/* --- turns --- */

static status read_role(const reading *k, const json_value *message, int *out)
{
    static const struct {
        const char *name;
        int role;
    } names[] = {
        {"system", ROLE_SYSTEM}, {"user", ROLE_USER},           {"human", ROLE_USER},
        {"gpt", ROLE_ASSISTANT}, {"assistant", ROLE_ASSISTANT},
    };
    const json_value *v = json_given(message, "role");
    const char *name = json_text(v ? v : json_find(message, "from"), NULL);
    if (!name)
        return FAIL_IN(ST_BAD_INPUT, k->source, "a message has no \"role\" or \"from\"");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].role;
            return ST_OK;
        }
    return FAIL_IN(ST_BAD_INPUT, k->source,
                   "role \"%.40s\": expected system, user, human, assistant or gpt", name);
}

static status read_weight(const reading *k, const json_value *v, float otherwise, float *out)
{
    const json_value *w = json_given(v, "weight");
    *out = otherwise;
    if (!w)
        return ST_OK;
    const double weight = json_real(w, -1);
    if (!(weight >= 0 && weight <= 1e6))
        return FAIL_IN(ST_BAD_INPUT, k->source, "\"weight\": expected a number from 0 to 1e6");
    *out = (float)weight;
    return ST_OK;
}

/* An image or video among the parts: its own name, or the next of the list. */
static status put_image_part(reading *k, chat_kind kind, const json_value *v, part *parts,
                             int32_t *n_parts)
{
    const json_value *name = json_given(v, chat_words[kind]), *url = json_given(v, "image_url");
    part *out = &parts[(*n_parts)++];
    if (kind == CHAT_IMAGE && url)
        name = json_typeof(url) == JSON_OBJECT ? json_given(url, "url") : url;
    if (!name)
        name = json_given(v, "path");
    if (k->rules->outside)
        name = NULL;
    if (!name)
        return show_next(k, kind, out);
    if (k->listed[kind].n > 0)
        return FAIL_IN(ST_BAD_INPUT, k->source,
                       "%ss are both listed beside the messages and named inside them",
                       chat_words[kind]);
    TRY(chat_names_add(&k->images, kind, name, v, k->source, k->a));
    *out = (part){.image = k->n_images++};
    return ST_OK;
}

/* A text of any role; an assistant's is a stage with a weight. */
static status put_any_text(reading *k, turn *t, const json_value *v, const json_value *owner,
                           float weight, float *weights)
{
    const char *text = json_text(v, NULL);
    const size_t n = json_text_size(v);
    char *copy;
    if (!text)
        return FAIL_IN(ST_BAD_INPUT, k->source, "a message's text is %s, expected a text",
                       v ? json_type_name(json_typeof(v)) : "missing");
    TRY(check_marks(k, t->role, text, n));
    if (t->role == ROLE_USER)
        return split_text(k, text, n, t->parts, &t->n_parts);
    if (t->role == ROLE_ASSISTANT) {
        if (weight < 0)
            weight = stage_weight(k->rules, k->stage);
        k->stage++;
        TRY(read_weight(k, owner, weight, &weights[t->n_parts]));
    }
    TRY(arena_strndup(k->a, text, n, &copy));
    t->parts[t->n_parts++] = (part){copy, (int64_t)n, -1};
    return ST_OK;
}

/* By its type, else by what it holds. False: a part of another kind. */
static bool is_image_part(const json_value *v, chat_kind *out)
{
    static const struct {
        const char *type;
        chat_kind kind; /* CHAT_KINDS: none */
    } types[] = {{"text", CHAT_KINDS},
                 {"video", CHAT_VIDEO},
                 {"image", CHAT_IMAGE},
                 {"image_url", CHAT_IMAGE}};
    const char *type = json_text(json_find(v, "type"), "");
    *out = json_given(v, "video")                                 ? CHAT_VIDEO
           : json_given(v, "image") || json_given(v, "image_url") ? CHAT_IMAGE
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
        const json_value *v = json_item(content, i);
        const json_value *text = json_typeof(v) == JSON_TEXT ? v : json_find(v, "text");
        room += 2 * count_marks(json_text(text, ""), json_text_size(text)) + 1;
    }
    return room;
}

static status read_content(reading *k, const json_value *message, const json_value *content,
                           turn *t)
{
    float *weights, whole; /* -1: the message has none of its own */
    TRY(read_weight(k, message, -1.0F, &whole));
    TRY(arena_calloc(k->a, room_for(content), sizeof *t->parts, (void **)&t->parts));
    TRY(arena_calloc(k->a, room_for(content), sizeof *weights, (void **)&weights));
    if (t->role == ROLE_ASSISTANT)
        t->weights = weights;
    if (json_typeof(content) == JSON_TEXT)
        return put_any_text(k, t, content, message, whole, weights);
    for (size_t i = 0; i < json_count(content); i++) {
        const json_value *v = json_item(content, i);
        chat_kind kind;
        if (json_typeof(v) == JSON_TEXT)
            TRY(put_any_text(k, t, v, NULL, whole, weights));
        else if (t->role == ROLE_USER && is_image_part(v, &kind))
            TRY(put_image_part(k, kind, v, t->parts, &t->n_parts));
        else if (json_given(v, "text"))
            TRY(put_any_text(k, t, json_find(v, "text"), v, whole, weights));
        else
            return FAIL_IN(ST_BAD_INPUT, k->source,
                           "part %zu of a message is neither a text nor an image or video of the "
                           "user",
                           i + 1);
    }
    return ST_OK;
}

static status read_message(reading *k, const json_value *v, turn *t)
{
    if (json_typeof(v) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, k->source, "a message is %s, expected an object",
                       json_type_name(json_typeof(v)));
    TRY(read_role(k, v, &t->role));
    if (json_count(json_find(v, "tool_calls")))
        return FAIL_IN(ST_BAD_INPUT, k->source, "calls tools, which are not rendered");
    const json_value *content = json_given(v, "content");
    if (!content)
        content = json_given(v, "value");
    if (!content || (json_typeof(content) != JSON_TEXT && json_typeof(content) != JSON_ARRAY))
        return FAIL_IN(ST_BAD_INPUT, k->source,
                       "a message's \"content\" (\"value\") is %s, expected a text or a list",
                       content ? json_type_name(json_typeof(content)) : "missing");
    return read_content(k, v, content, t);
}

/* {"question", "answer"}: the images and videos, the question; the answer, perhaps a list of
 * stages. */
static status read_question(reading *k, const json_value *v)
{
    const json_value *question = json_find(v, "question"), *answer = json_find(v, "answer");
    turn *user = &k->r.turns[0], *assistant = &k->r.turns[1];
    float none[1];
    const char *text = json_text(question, "");
    const size_t n = json_text_size(question), shown = count_marks(text, n);
    if (json_typeof(answer) != JSON_TEXT && json_typeof(answer) != JSON_ARRAY)
        return FAIL_IN(ST_BAD_INPUT, k->source, "\"answer\" is %s, expected a text or a list",
                       json_type_name(json_typeof(answer)));
    user->role = ROLE_USER;
    assistant->role = ROLE_ASSISTANT;
    const int32_t n_images = n_listed(k, CHAT_IMAGE), n_videos = n_listed(k, CHAT_VIDEO);
    TRY(arena_calloc(k->a, 2 * shown + 1 + (size_t)n_images + (size_t)n_videos, sizeof *user->parts,
                     (void **)&user->parts));
    for (int32_t i = 0; shown == 0 && i < n_images + n_videos; i++) {
        const chat_kind kind = k->rules->outside ? kind_outside(k, i)
                               : i < n_images    ? CHAT_IMAGE
                                                 : CHAT_VIDEO;
        TRY(show_next(k, kind, &user->parts[user->n_parts++]));
    }
    TRY(put_any_text(k, user, question, NULL, 1.0F, none));
    return read_content(k, v, answer, assistant);
}

static void choose_trained(reading *k)
{
    bool last = true;
    for (int32_t i = k->r.n_turns - 1; i >= 0; i--) {
        turn *t = &k->r.turns[i];
        if (t->role != ROLE_ASSISTANT)
            continue;
        t->trained = last || !k->rules->last_only;
        last = false;
    }
}

/* The list of turns; NULL if there is none. */
static const json_value *turns_of(const json_value *v)
{
    const json_value *list = json_given(v, "messages");
    return list ? list : json_given(v, "conversations");
}

static bool is_question(const json_value *v)
{
    return !turns_of(v) && json_given(v, "question") && json_given(v, "answer");
}

bool chat_record_is(const json_value *v)
{
    return turns_of(v) || is_question(v);
}

status chat_record_read(const json_value *v, const chat_rules *rules, const char *source, arena *a,
                        chat_record *out)
{
    reading k = {.rules = rules, .source = source, .a = a, .r = {.id = ""}};
    const json_value *list = turns_of(v), *id = json_find(v, "id");
    const bool question = is_question(v);
    char *copy;
    if (!question && (!list || json_typeof(list) != JSON_ARRAY || json_count(list) == 0))
        return FAIL_IN(ST_BAD_INPUT, source,
                       "expected \"messages\" or \"conversations\" (a list of turns), or "
                       "\"question\" and \"answer\"; found %s",
                       !list              ? "none of them"
                       : json_count(list) ? "no list"
                                          : "an empty list");
    if (id && json_typeof(id) == JSON_TEXT) {
        TRY(arena_strndup(a, json_text(id, ""), json_text_size(id), &copy));
        k.r.id = copy;
    }
    k.r.n_turns = question ? 2 : (int32_t)json_count(list);
    TRY(arena_calloc(a, (size_t)k.r.n_turns, sizeof *k.r.turns, (void **)&k.r.turns));
    TRY(list_images(&k, v));
    for (int32_t i = 0; !question && i < k.r.n_turns; i++)
        TRY(read_message(&k, json_item(list, (size_t)i), &k.r.turns[i]));
    if (question)
        TRY(read_question(&k, v));
    for (int kind = 0; kind < CHAT_KINDS; kind++)
        if (k.shown[kind] != n_listed(&k, (chat_kind)kind))
            return FAIL_IN(ST_BAD_INPUT, source, "its texts show %d %ss (%s), %d are listed",
                           (int)k.shown[kind], chat_words[kind], marks[kind],
                           (int)n_listed(&k, (chat_kind)kind));
    k.r.images = k.images.items;
    k.r.n_images = k.n_images;
    choose_trained(&k);
    *out = k.r;
    return ST_OK;
}
