/* SPDX-License-Identifier: Apache-2.0 */
/* conf_stream.c: the options that change the rows, as one JSON object. A consumer sends its object
 * in HELLO and the daemon compares it with its own; a recording and a checkpoint keep one too. */
#include "common/conf/conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf_table.h"
#include "common/json/json.h"

enum { SHOWN = 200 /* bytes of a text that the message about a difference quotes */ };

static void put_value(json_writer *writer, const conf *options, const conf_row *option)
{
    const char *field = (const char *)options + option->offset;
    char text[CONF_TEXT_MAX];
    conf_value_text(options, option, text, sizeof text);
    switch (option->kind) {
    case ROW_INT:
        json_put_int(writer, *(const int64_t *)(const void *)field);
        break;
    case ROW_REAL:
        json_put_real(writer, *(const double *)(const void *)field);
        break;
    case ROW_BOOL:
        json_put_bool(writer, *(const bool *)field);
        break;
    default:
        json_put_cstr(writer, text);
    }
}

status conf_stream_json(const conf *options, hash128 model_digest, char **out)
{
    json_writer writer;
    char digest[HASH_TEXT];
    hash_print(model_digest, digest);
    json_writer_init(&writer);
    json_begin_object(&writer);
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *option = &conf_rows[i];
        if (!conf_row_is_option(option) || option->flow != FLOW_STREAM)
            continue;
        if (strcmp(option->key, "model.tokenizer") == 0)
            continue; /* the model's digest covers the tokenizer too */
        json_put_key(&writer, option->key);
        if (strcmp(option->key, "model.path") == 0)
            json_put_cstr(&writer, digest);
        else
            put_value(&writer, options, option);
    }
    json_end_object(&writer);
    return json_writer_take(&writer, out, NULL);
}

/* Writes the default of an option that one side does not name. A stream may be older than the
 * option, and then it was made as the default makes it. */
static void default_words(const char *key, char *out, size_t size)
{
    const conf_row *option = conf_row_find(key);
    char text[CONF_TEXT_MAX];
    if (!option || !conf_row_is_option(option) || option->flow != FLOW_STREAM ||
        option->text_kind == TEXT_PATH) {
        snprintf(out, size, "nothing");
        return;
    }
    conf_default_text(option, text, sizeof text);
    const bool quoted = option->kind == ROW_TEXT || option->kind == ROW_ENUM;
    if (option->kind == ROW_REAL)
        snprintf(out, size, "%.17g", option->real);
    else
        snprintf(out, size, "%s%.*s%s", quoted ? "\"" : "", SHOWN, text, quoted ? "\"" : "");
}

static void value_words(const json_value *value, const char *key, char *out, size_t size)
{
    if (!value) {
        default_words(key, out, size);
        return;
    }
    switch (json_typeof(value)) {
    case JSON_INT:
        snprintf(out, size, "%lld", (long long)json_int(value, 0));
        break;
    case JSON_REAL:
        snprintf(out, size, "%.17g", json_real(value, 0));
        break;
    case JSON_BOOL:
        snprintf(out, size, "%s", json_bool(value, false) ? "true" : "false");
        break;
    case JSON_TEXT:
        snprintf(out, size, "\"%.*s\"%s", SHOWN, json_text(value, ""),
                 json_text_size(value) > SHOWN ? ".." : "");
        break;
    default:
        snprintf(out, size, "%s", json_type_name(json_typeof(value)));
    }
}

/* Compares two texts in full, although a message shows only their first SHOWN bytes. If the
 * difference may lie beyond these, out_words says after how many bytes it begins. */
static bool texts_differ(const json_value *first, const json_value *second, char out_words[64])
{
    const char *was_text = json_text(first, ""), *is_text = json_text(second, "");
    const size_t was_size = json_text_size(first), is_size = json_text_size(second);
    size_t same = 0;
    while (same < was_size && same < is_size && was_text[same] == is_text[same])
        same++;
    if (same == was_size && same == is_size)
        return false;
    if (was_size > SHOWN || is_size > SHOWN)
        snprintf(out_words, 64, " (the first %zu bytes are the same)", same);
    return true;
}

static bool is_text(const json_value *value)
{
    return value && json_typeof(value) == JSON_TEXT;
}

/* Whether these words are the default of an option that no longer exists, which a stream of an
 * older build still names. */
static bool is_removed_default(const char *key, const char *words)
{
    const conf_row *row = conf_row_find(key);
    if (!row || row->kind != ROW_REMOVED)
        return false;
    const size_t quote = *words == '"', count = strlen(row->text);
    return strlen(words) == count + 2 * quote && strncmp(words + quote, row->text, count) == 0;
}

/* Goes through the keys of `from` and describes the first one whose two values differ. */
static bool first_difference(const json_value *from, const json_value *ours,
                             const json_value *theirs, char *out, size_t size)
{
    char here[256], there[256];
    for (size_t i = 0; i < json_count(from); i++) {
        const char *key = "";
        json_member(from, i, &key);
        char parting[64] = "";
        const json_value *first = json_find(ours, key), *second = json_find(theirs, key);
        value_words(first, key, here, sizeof here);
        value_words(second, key, there, sizeof there);
        if (!second && is_removed_default(key, here))
            continue;
        if (!first && is_removed_default(key, there))
            continue;
        if (is_text(first) && is_text(second) ? texts_differ(first, second, parting)
                                              : strcmp(here, there) != 0) {
            snprintf(out, size, "%.100s: %s here, %s there%s", key, here, there, parting);
            return true;
        }
    }
    return false;
}

status conf_stream_diff(const char *ours, const char *theirs, char **out_difference)
{
    json_value *first = NULL, *second = NULL;
    char words[1024] = "";
    status st = json_parse(ours, strlen(ours), "our stream options", &first);
    if (st == ST_OK)
        st = json_parse(theirs, strlen(theirs), "the peer's stream options", &second);
    if (st == ST_OK && (json_typeof(first) != JSON_OBJECT || json_typeof(second) != JSON_OBJECT))
        st = FAIL(ST_PROTOCOL, "stream options must be a JSON object");
    char *copy = NULL;
    if (st == ST_OK && (first_difference(first, first, second, words, sizeof words) ||
                        first_difference(second, first, second, words, sizeof words))) {
        copy = strdup(words);
        if (!copy)
            st = FAIL(ST_NO_MEMORY, "no memory to compare the stream options");
    }
    if (st == ST_OK)
        *out_difference = copy;
    json_free(&first);
    json_free(&second);
    return st;
}
