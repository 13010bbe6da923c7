/* conf_stream.c: the options that change the rows, as one JSON object. A consumer sends its object
 * in HELLO and the daemon compares it with its own; a recording and a checkpoint keep one too. */
#include "common/conf/conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf_table.h"
#include "common/json/json.h"

enum { SHOWN = 200 /* bytes of a text that the message about a difference quotes */ };

static void put_value(json_writer *w, const conf *c, const conf_row *r)
{
    const char *field = (const char *)c + r->offset;
    char text[CONF_TEXT_MAX];
    conf_value_text(c, r, text, sizeof text);
    switch (r->kind) {
    case ROW_INT:
        json_put_int(w, *(const int64_t *)(const void *)field);
        break;
    case ROW_REAL:
        json_put_real(w, *(const double *)(const void *)field);
        break;
    case ROW_BOOL:
        json_put_bool(w, *(const bool *)field);
        break;
    default:
        json_put_cstr(w, text);
    }
}

status conf_stream_json(const conf *c, hash128 model_digest, char **out)
{
    json_writer w;
    char digest[HASH_TEXT];
    hash_print(model_digest, digest);
    json_writer_init(&w);
    json_begin_object(&w);
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *r = &conf_rows[i];
        if (!conf_row_is_option(r) || r->flow != FLOW_STREAM)
            continue;
        if (strcmp(r->key, "model.tokenizer") == 0)
            continue; /* the model's digest covers the tokenizer too */
        json_put_key(&w, r->key);
        if (strcmp(r->key, "model.path") == 0)
            json_put_cstr(&w, digest);
        else
            put_value(&w, c, r);
    }
    json_end_object(&w);
    return json_writer_take(&w, out, NULL);
}

/* Writes the default of an option that one side does not name. A stream may be older than the
 * option, and then it was made as the default makes it. */
static void default_words(const char *key, char *out, size_t size)
{
    const conf_row *r = conf_row_find(key);
    char text[CONF_TEXT_MAX];
    if (!r || !conf_row_is_option(r) || r->flow != FLOW_STREAM || r->text_kind == TEXT_PATH) {
        snprintf(out, size, "nothing");
        return;
    }
    conf_default_text(r, text, sizeof text);
    const bool quoted = r->kind == ROW_TEXT || r->kind == ROW_ENUM;
    if (r->kind == ROW_REAL)
        snprintf(out, size, "%.17g", r->real);
    else
        snprintf(out, size, "%s%.*s%s", quoted ? "\"" : "", SHOWN, text, quoted ? "\"" : "");
}

static void value_words(const json_value *v, const char *key, char *out, size_t size)
{
    if (!v) {
        default_words(key, out, size);
        return;
    }
    switch (json_typeof(v)) {
    case JSON_INT:
        snprintf(out, size, "%lld", (long long)json_int(v, 0));
        break;
    case JSON_REAL:
        snprintf(out, size, "%.17g", json_real(v, 0));
        break;
    case JSON_BOOL:
        snprintf(out, size, "%s", json_bool(v, false) ? "true" : "false");
        break;
    case JSON_TEXT:
        snprintf(out, size, "\"%.*s\"%s", SHOWN, json_text(v, ""),
                 json_text_size(v) > SHOWN ? ".." : "");
        break;
    default:
        snprintf(out, size, "%s", json_type_name(json_typeof(v)));
    }
}

/* Compares two texts in full, although a message shows only their first SHOWN bytes. If the
 * difference may lie beyond these, out_words says after how many bytes it begins. */
static bool texts_differ(const json_value *a, const json_value *b, char out_words[64])
{
    const char *x = json_text(a, ""), *y = json_text(b, "");
    const size_t n = json_text_size(a), m = json_text_size(b);
    size_t same = 0;
    while (same < n && same < m && x[same] == y[same])
        same++;
    if (same == n && same == m)
        return false;
    if (n > SHOWN || m > SHOWN)
        snprintf(out_words, 64, " (the first %zu bytes are the same)", same);
    return true;
}

static bool is_text(const json_value *v)
{
    return v && json_typeof(v) == JSON_TEXT;
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
        const json_value *a = json_find(ours, key), *b = json_find(theirs, key);
        value_words(a, key, here, sizeof here);
        value_words(b, key, there, sizeof there);
        if (is_text(a) && is_text(b) ? texts_differ(a, b, parting) : strcmp(here, there) != 0) {
            snprintf(out, size, "%.100s: %s here, %s there%s", key, here, there, parting);
            return true;
        }
    }
    return false;
}

status conf_stream_diff(const char *ours, const char *theirs, char **out_difference)
{
    json_value *a = NULL, *b = NULL;
    char words[1024] = "";
    status st = json_parse(ours, strlen(ours), "our stream options", &a);
    if (st == ST_OK)
        st = json_parse(theirs, strlen(theirs), "the peer's stream options", &b);
    if (st == ST_OK && (json_typeof(a) != JSON_OBJECT || json_typeof(b) != JSON_OBJECT))
        st = FAIL(ST_PROTOCOL, "stream options must be a JSON object");
    char *copy = NULL;
    if (st == ST_OK && (first_difference(a, a, b, words, sizeof words) ||
                        first_difference(b, a, b, words, sizeof words))) {
        copy = strdup(words);
        if (!copy)
            st = FAIL(ST_NO_MEMORY, "no memory to compare the stream options");
    }
    if (st == ST_OK)
        *out_difference = copy;
    json_free(&a);
    json_free(&b);
    return st;
}
