/* SPDX-License-Identifier: Apache-2.0 */
/* chat_template.c: looks a template up in three files, in the order of transformers, and compares
 * the hash of its text with those that are known. */
#include "prepd/sample/chat_template.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/json/json.h"

enum { JINJA_MAX = 1 << 20 }; /* bytes; published templates have a few thousand */

/* The templates that give what text.c writes, for every conversation that it accepts. To add one,
 * compare it with a known one (tests/golden/make_chat.py --same-as), then add the hash that the
 * refusal prints and the models that have it. */
static const struct {
    const char *digest;
    const char *releases;
} KNOWN[] = {
    {"02106194b02d7f3ba6c9c2c4e7ca9522", "Qwen3-VL Instruct (seen: 4B, 8B), Cosmos-Reason2-8B"},
};

static void recognise(const char *text, size_t size, chat_template *chat)
{
    char digest[HASH_TEXT];
    if (size && text[size - 1] == '\n')
        size--;
    chat->digest = hash_bytes(text, size);
    chat->thinks = size && memmem(text, size, "<think>", strlen("<think>"));
    hash_print(chat->digest, digest);
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (strcmp(KNOWN[i].digest, digest) == 0)
            chat->releases = KNOWN[i].releases;
}

/* The path of a file of the model folder; *out_there says whether it exists. */
static status look_for(const conf *options, const char *name, char path[STATUS_PATH_MAX],
                       bool *out_there)
{
    const char *folder =
        options->model_tokenizer[0] ? options->model_tokenizer : options->model_path;
    if (snprintf(path, STATUS_PATH_MAX, "%s/%s", folder, name) >= STATUS_PATH_MAX)
        return FAIL(ST_CONFIG, "model.path is longer than %d bytes", STATUS_PATH_MAX);
    *out_there = folder[0] && access(path, F_OK) == 0;
    return ST_OK;
}

static status from_jinja(const conf *options, chat_template *chat, bool *out_found)
{
    char path[STATUS_PATH_MAX];
    TRY(look_for(options, "chat_template.jinja", path, out_found));
    if (!*out_found)
        return ST_OK;
    FILE *file = fopen(path, "rbe");
    if (!file)
        return FAIL_IN(ST_IO, path, "%s", strerror(errno));
    status st = ST_OK;
    char *text = malloc(JINJA_MAX + 1);
    const int64_t size = text ? file_read_all(fileno(file), text, JINJA_MAX + 1, -1) : 0;
    if (!text)
        st = FAIL(ST_NO_MEMORY, "no memory for a chat template");
    else if (size < 0)
        st = FAIL_IN(ST_IO, path, "it cannot be read: %s", strerror(errno));
    else if (size > JINJA_MAX)
        st = FAIL_IN(ST_BAD_INPUT, path, "it is longer than %d bytes", JINJA_MAX);
    else
        recognise(text, (size_t)size, chat);
    memcpy(chat->path, path, sizeof chat->path);
    free(text);
    fclose(file);
    return st;
}

/* Of several templates, [{"name": .., "template": ..}, ..], the one named "default"; any other
 * value itself. */
static const json_value *default_of(const json_value *value)
{
    for (size_t i = 0; i < json_count(value) && json_typeof(value) == JSON_ARRAY; i++) {
        const json_value *one = json_item(value, i);
        if (strcmp(json_text(json_find(one, "name"), ""), "default") == 0)
            return json_find(one, "template");
    }
    return value;
}

static status from_json(const conf *options, const char *name, chat_template *chat, bool *out_found)
{
    char path[STATUS_PATH_MAX];
    bool there;
    json_value *file;
    *out_found = false;
    TRY(look_for(options, name, path, &there));
    if (!there)
        return ST_OK;
    TRY(json_load(path, &file));
    status st = ST_OK;
    const json_value *value = default_of(json_given(file, "chat_template"));
    if (value && json_typeof(value) != JSON_TEXT) {
        st = FAIL_IN(ST_BAD_INPUT, path,
                     "chat_template is %s, expected a text or a list in which one is named default",
                     json_type_name(json_typeof(value)));
    } else if (value) {
        recognise(json_text(value, ""), json_text_size(value), chat);
        memcpy(chat->path, path, sizeof chat->path);
        *out_found = true;
    }
    json_free(&file);
    return st;
}

status chat_template_find(const conf *options, chat_template *out)
{
    chat_template chat = {.path = ""};
    char path[STATUS_PATH_MAX];
    bool pictures, found = false;
    TRY(look_for(options, "preprocessor_config.json", path, &pictures));
    if (pictures)
        TRY(from_json(options, "chat_template.json", &chat, &found));
    if (!found)
        TRY(from_jinja(options, &chat, &found));
    if (!found)
        TRY(from_json(options, "tokenizer_config.json", &chat, &found));
    *out = chat;
    return ST_OK;
}

status chat_template_check(const conf *options, chat_template *out)
{
    char digest[HASH_TEXT];
    chat_template chat = {.path = ""};
    if (!conf_is_plain_text(options))
        TRY(chat_template_find(options, &chat));
    *out = chat;
    if (!chat.path[0] || chat.releases || options->model_chat_template == CHAT_TEMPLATE_INSTRUCT)
        return ST_OK;
    hash_print(chat.digest, digest);
    return FAIL_IN(
        ST_CONFIG, chat.path,
        "prepd does not know this chat template (%s)%s. prepd writes conversations as the "
        "template of Qwen3-VL Instruct does: <|im_start|>, the role, a line end, the text, "
        "<|im_end|>. If the model is to be trained on that form, set model.chat_template "
        "to instruct",
        digest, chat.thinks ? ", which puts <think> into answers" : "");
}
