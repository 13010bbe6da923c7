/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of json.h: documents are parsed into trees, the items of a long array are handed out one by
 * one, what is written is read back, and hostile texts are refused with their place and without
 * using much memory or time. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"

static json_value *parse_text(const char *text)
{
    json_value *value = NULL;
    assert_ok(json_parse(text, strlen(text), "t.json", &value));
    return value;
}

static void refuse_json(const char *text, const char *words)
{
    json_value *value = NULL;
    assert_fails(ST_BAD_INPUT, json_parse(text, strlen(text), "t.json", &value), words);
    assert_null(value);
}

static void test_parse__every_type(void **state)
{
    (void)state;
    json_value *value =
        parse_text(" {\"a\": [1, -2.5, true, null, \"x\\u0000\\u00e9\"], \"b\": {}, "
                   "\"c\": 9223372036854775807, \"d\": 1e3, \"e\": 9223372036854775808}\n");
    assert_int_equal(json_typeof(value), JSON_OBJECT);
    assert_int_equal(json_count(value), 5);
    const json_value *object = json_find(value, "a");
    assert_int_equal(json_count(object), 5);
    assert_int_equal(json_int(json_item(object, 0), -1), 1);
    assert_true(json_real(json_item(object, 1), 0) == -2.5);
    assert_true(json_real(json_item(object, 0), 0) == 1);
    assert_true(json_bool(json_item(object, 2), false));
    assert_int_equal(json_typeof(json_item(object, 3)), JSON_NULL);
    assert_int_equal(json_text_size(json_item(object, 4)), 4);
    assert_memory_equal(json_text(json_item(object, 4), ""), "x\0\xC3\xA9", 5);
    assert_null(json_item(object, 5));
    assert_null(json_find(object, "a"));
    assert_null(json_find(value, "z"));
    assert_true(json_int(json_find(value, "c"), 0) == INT64_MAX);
    assert_int_equal(json_typeof(json_find(value, "d")), JSON_REAL);
    assert_int_equal(json_typeof(json_find(value, "e")), JSON_REAL);
    const char *key = NULL;
    assert_non_null(json_member(value, 1, &key));
    assert_string_equal(key, "b");
    assert_int_equal(json_int(json_find(value, "b"), 7), 7);
    json_free(&value);
    json_free(&value);
}

static void test_parse__large_object_is_indexed(void **state)
{
    (void)state;
    enum { MEMBERS = 5000 };
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    for (int i = 0; i < MEMBERS; i++) {
        char key[32];
        snprintf(key, sizeof key, "key %d", i);
        json_put_key_int(&writer, key, i);
    }
    json_end_object(&writer);
    char *text;
    size_t size;
    assert_ok(json_writer_take(&writer, &text, &size));
    json_value *value = NULL;
    assert_ok(json_parse(text, size, "t", &value));
    for (int i = 0; i < MEMBERS; i++) {
        const char *key;
        const json_value *object = json_member(value, (size_t)i, &key);
        assert_ptr_equal(json_find(value, key), object);
        assert_int_equal(json_int(object, -1), i);
    }
    assert_null(json_find(value, "key 5000"));
    json_free(&value);
    memcpy(strstr(text, "key 4999"), "key 1234", 8);
    assert_fails(ST_BAD_INPUT, json_parse(text, size, "t", &value), "\"key 1234\" twice");
    free(text);
}

static void test_parse__refuses(void **state)
{
    (void)state;
    refuse_json("", "t.json:1");
    refuse_json("{\"a\": 1", "premature EOF");
    refuse_json("{\"a\": 1,\n \"b\": 2,\n}", "t.json:3");
    refuse_json("[1, 2] x", "t.json:1");
    refuse_json("[1] [2]", "trailing");
    refuse_json("{\"a\": 1, \"b\": 2, \"a\": 3}", "\"a\" twice");
    refuse_json("[\"\xff\"]", "UTF8");
    refuse_json("[\"\xed\xa0\x80\"]", "UTF8");
    refuse_json("[01]", "t.json:1");
    refuse_json("[1e999]", "range");
    refuse_json("[nul]", "not JSON");
    refuse_json("/* c */ 1", "not JSON");
    char deep[600];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    refuse_json(deep, "deeper than 256");
}

/* A value of two bytes of text takes about a hundred in memory, so their number is limited. */
static void test_parse__refuses_too_many_values(void **state)
{
    enum { VALUES = 10 << 20 };
    json_value *value = NULL;
    char *text = (char *)malloc(2 * VALUES);
    (void)state;
    assert_non_null(text);
    for (int i = 0; i < VALUES; i++)
        memcpy(text + 2 * i, i ? ",0" : "[0", 2);
    assert_fails(ST_BAD_INPUT, json_parse(text, 2 * VALUES, "t", &value), "values");
    free(text);
}

/* Half of a surrogate pair is not a character, whatever follows it. */
static void test_parse__refuses_half_a_surrogate_pair(void **state)
{
    static const char *const halves[] = {
        "\"a\\ud83d\\u0041b\"", "\"\\ud83d\"",          "\"\\ud83dx\"",
        "\"\\udc00\"",          "\"\\ud83d\\n\"",       "\"\\ud83d\\ud83d\\ude00\"",
        "\"\\uD83D\\uD83D\"",   "\"\\ud83d\\\\ude00\"", "\"\\ud83d\\ude00\\ude00\"",
        "{\"\\ud83d\": 1}"};
    (void)state;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        refuse_json(halves[i], "surrogate");
    refuse_json("[1,\n \"ab\\ud83d\\u0041\"]",
                "t.json:2: not JSON: an escaped surrogate without the "
                "other half (column 5, byte 8)");
    refuse_json("[x, \"\\ud83d\"]", "invalid"); /* the first error is the one that is named */
    refuse_json("[\"\\ud83dz", "surrogate");
    refuse_json("[\"\\ud83d", "premature EOF");
    refuse_json("[\"\\ud83d\\ude0x\"]", "not JSON");
    json_value *value =
        parse_text("[\"\\ud83d\\ude00\", \"\\uD83D\\uDE00\\ud83d\\ude01\", \"\\\\ud83d\"]");
    assert_string_equal(json_text(json_item(value, 0), ""), "\U0001F600");
    assert_string_equal(json_text(json_item(value, 1), ""), "\U0001F600\U0001F601");
    assert_string_equal(json_text(json_item(value, 2), ""), "\\ud83d");
    json_free(&value);
}

static void test_want__names_key_and_types(void **state)
{
    (void)state;
    json_value *value = parse_text(
        "{\"text_config\": {\"hidden_size\": \"64\"}, \"a.b\": 3, \"r\": 2, \"y\": true}");
    bool flag = false;
    int64_t i;
    double number;
    const char *text;
    const json_value *object;
    assert_ok(json_want_int(value, "a.b", "c.json", &i));
    assert_int_equal(i, 3);
    assert_ok(json_want_real(value, "r", "c.json", &number));
    assert_ok(json_want_bool(value, "y", "c.json", &flag));
    assert_true(flag);
    assert_fails(ST_BAD_INPUT, json_want_bool(value, "r", "c.json", &flag),
                 "\"r\": expected true or false, found an integer");
    assert_ok(json_want_text(value, "text_config.hidden_size", "c.json", &text));
    assert_string_equal(text, "64");
    assert_fails(ST_BAD_INPUT, json_want_int(value, "text_config.hidden_size", "c.json", &i),
                 "c.json: \"text_config.hidden_size\": expected an integer, found a text");
    assert_fails(ST_BAD_INPUT, json_want_array(value, "zz", "c.json", &object),
                 "\"zz\" is missing");
    assert_fails(ST_BAD_INPUT, json_want_int(json_find(value, "r"), "x", "c.json", &i),
                 "an object");
    json_free(&value);
}

typedef struct seen {
    int count;
    int64_t sum;
    json_place last;
    int stop_at;
} seen;

static status each(void *user, const json_value *item, const json_place *at)
{
    seen *found = (seen *)user;
    int64_t id;
    TRY(json_want_int(item, "question_id", "item", &id));
    found->sum += id;
    found->last = *at;
    if (++found->count == found->stop_at)
        return FAIL(ST_STOPPED, "enough");
    return ST_OK;
}

static char *write_file(const char *folder, const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/q.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return strdup(path);
}

static void test_stream__hands_out_items_with_offsets(void **state)
{
    (void)state;
    char *folder = harness_temp();
    const char *text = "{\"info\": {\"questions\": [9]}, \"n\": [[1], {}],\n\"questions\": "
                       "[{\"question_id\": 1, \"x\": [{}]}, {\"question_id\": 20}],\n\"z\": 1}";
    char *path = write_file(folder, text);
    seen found = {0};
    assert_ok(json_stream_array(path, "questions", NULL, each, &found));
    assert_int_equal(found.count, 2);
    assert_int_equal(found.sum, 21);
    assert_int_equal(found.last.offset, strstr(text, "{\"question_id\": 20}") - text);
    assert_int_equal(found.last.bytes, strlen("{\"question_id\": 20}"));
    assert_int_equal(found.last.line, 2);
    seen stop = {.stop_at = 1};
    assert_fails(ST_STOPPED, json_stream_array(path, "questions", NULL, each, &stop), "enough");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "annotations", NULL, each, &found),
                 "no member \"annotations\"");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "z", NULL, each, &found),
                 "expected an array");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, NULL, NULL, each, &found),
                 "top level: expected");
    free(path);
    path = write_file(folder, "[{\"question_id\": 3}]");
    seen top = {0};
    assert_ok(json_stream_array(path, NULL, NULL, each, &top));
    assert_int_equal(top.sum, 3);
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "questions", NULL, each, &found),
                 "an object");
    free(path);
    path = write_file(folder, "{\"questions\": [{\"question_id\": 1},\n{\"question_id\": 2},]}");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "questions", NULL, each, &found),
                 "q.json:2");
    free(path);
    path = write_file(folder, "{\"questions\": [{\"question_id\": 1}");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "questions", NULL, each, &found),
                 "premature");
    free(path);
    path = write_file(folder, "{\"questions\": [], \"questions\": []}");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "questions", NULL, each, &found), "twice");
    free(path);
    harness_remove(&folder);
}

typedef struct kept {
    int count;
    char text[512];
} kept;

static status keep_item(void *user, const json_value *item, const json_place *at)
{
    kept *held = (kept *)user;
    json_writer writer;
    char *text;
    size_t size;
    assert_true(at->bytes > 0);
    json_writer_init(&writer);
    json_put_value(&writer, item);
    TRY(json_writer_take(&writer, &text, &size));
    snprintf(held->text + strlen(held->text), sizeof held->text - strlen(held->text), "%s\n", text);
    free(text);
    held->count++;
    return ST_OK;
}

/* The member that is left out reads as null, whatever its value is. The same name is left alone
 * deeper down, outside the items and as a text. */
static void test_stream__leaves_a_member_out(void **state)
{
    (void)state;
    char *folder = harness_temp();
    char *path = write_file(
        folder,
        "{\"x\": 1, \"q\": [{\"a\": 1, \"x\": [{\"x\": {\"b\": [1.5, \"\\u00e9\", null, true]}}, "
        "[]],"
        "\"z\": {\"x\": 2}}, {\"x\": {}}, {\"x\": \"t\", \"y\": \"x\"}, {\"x\": 7}, {\"x\": null},"
        "{\"x\": false, \"xx\": [\"x\"]}, {}]}");
    kept held = {0};
    assert_ok(json_stream_array(path, "q", "x", keep_item, &held));
    assert_int_equal(held.count, 7);
    assert_string_equal(held.text, "{\"a\":1,\"x\":null,\"z\":{\"x\":2}}\n{\"x\":null}\n"
                                   "{\"x\":null,\"y\":\"x\"}\n{\"x\":null}\n{\"x\":null}\n"
                                   "{\"x\":null,\"xx\":[\"x\"]}\n{}\n");
    free(path);
    /* what is left out must still be valid JSON */
    path = write_file(folder, "[{\"x\": [1, {\"y\" 2}]}]");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, NULL, "x", keep_item, &held), "not JSON");
    free(path);
    path = write_file(folder, "[{\"x\": [\"\xed\xa0\x80\"]}]");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, NULL, "x", keep_item, &held), "UTF8");
    free(path);
    char deep[1024] = "[{\"x\": ";
    memset(deep + strlen(deep), '[', 300);
    path = write_file(folder, deep);
    assert_fails(ST_BAD_INPUT, json_stream_array(path, NULL, "x", keep_item, &held), "nested");
    free(path);
    harness_remove(&folder);
}

/* A file longer than the read buffer: tokens and lines lie across its ends, and an error far into
 * the file is named with its place. */
static void test_stream__reads_a_file_longer_than_its_buffer(void **state)
{
    (void)state;
    enum { RECORDS = 20000 };
    char *folder = harness_temp(), path[4096];
    snprintf(path, sizeof path, "%s/big.json", folder);
    for (int bad = 0; bad < 2; bad++) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs("{\"questions\": [", file);
        for (int i = 0; i < RECORDS; i++)
            fprintf(file, "%s\n{\"question_id\": %d, \"question\": \"what colour \\u00e9 is it?\"}",
                    i ? "," : "", i);
        fputs(bad ? ",]}" : "]}", file);
        fclose(file);
        seen found = {0};
        if (bad)
            assert_fails(ST_BAD_INPUT, json_stream_array(path, "questions", NULL, each, &found),
                         "big.json:20001:");
        else
            assert_ok(json_stream_array(path, "questions", NULL, each, &found));
        assert_int_equal(found.count, RECORDS);
        assert_int_equal(found.sum, (int64_t)RECORDS * (RECORDS - 1) / 2);
        assert_int_equal(found.last.line, RECORDS + 1);
        assert_int_equal(found.last.bytes, strlen("{\"question_id\": 19999, \"question\": "
                                                  "\"what colour \\u00e9 is it?\"}"));
    }
    harness_remove(&folder);
}

typedef struct pieces {
    const char *rest;
    size_t first; /* bytes of the first piece; each later piece is one byte */
} pieces;

static status next_piece(void *input, void *to, size_t size, size_t *out_n)
{
    pieces *texts = (pieces *)input;
    size_t length = strnlen(texts->rest, texts->first < size ? texts->first : size);
    memcpy(to, texts->rest, length);
    texts->rest += length;
    texts->first = 1;
    *out_n = length;
    return ST_OK;
}

/* A surrogate pair may lie across two pieces, wherever it is cut. */
static void test_stream__surrogate_pairs_may_lie_across_pieces(void **state)
{
    static const char good[] = "[{\"a\": 1},\n{\"a\": \"x\\ud83d\\ude00y\"}]";
    static const char bad[] = "[{\"a\": 1},\n{\"a\": \"x\\ud83d\\u0041y\"}]";
    (void)state;
    for (size_t first = 1; first < sizeof good; first++) {
        pieces texts = {good, first};
        kept held = {0};
        assert_ok(json_stream_from("s", next_piece, &texts, NULL, NULL, keep_item, &held));
        assert_string_equal(held.text, "{\"a\":1}\n{\"a\":\"x\U0001F600y\"}\n");
        texts = (pieces){bad, first};
        held = (kept){0};
        assert_fails(ST_BAD_INPUT,
                     json_stream_from("s", next_piece, &texts, NULL, NULL, keep_item, &held),
                     "s:2: not JSON: an escaped surrogate without the other half (column 9, "
                     "byte 19)");
        assert_string_equal(held.text,
                            "{\"a\":1}\n"); /* the item before the error was handed out */
    }
}

/* An array with one long item, made while it is read. */
typedef struct long_input {
    const char *before, *filling, *after;
    int64_t bytes; /* of the filling, which is repeated to this length */
    int64_t at;
    size_t most;  /* the largest piece that is given at once */
    int64_t work; /* bytes that yajl reads: the filling so far, anew with every piece */
} long_input;

/* Writes bytes [at, at + count) of the endless repetition of text. */
static void repeat(char *to, const char *text, int64_t at, int64_t count)
{
    const int64_t step = (int64_t)strlen(text);
    for (int64_t i = 0; i < count && i < step; i++)
        to[i] = text[(at + i) % step];
    for (int64_t had = step; had < count; had *= 2)
        memcpy(to + had, to, (size_t)(had < count - had ? had : count - had));
}

static status next_of_long(void *input, void *to, size_t size, size_t *out_n)
{
    long_input *in = (long_input *)input;
    const int64_t first = (int64_t)strlen(in->before), last = first + in->bytes;
    const int64_t end = last + (int64_t)strlen(in->after);
    const int64_t most = (int64_t)(size < in->most ? size : in->most);
    size_t count = 0;
    while ((int64_t)count < most && in->at < end) {
        const bool filling = in->at >= first && in->at < last;
        const int64_t left = most - (int64_t)count, rest = last - in->at;
        const int64_t some = filling ? rest < left ? rest : left : 1;
        if (filling)
            repeat((char *)to + count, in->filling, in->at - first, some);
        else
            ((char *)to)[count] = in->at < first ? in->before[in->at] : in->after[in->at - last];
        in->at += some;
        count += (size_t)some;
    }
    if (size > in->most) /* the caller asks again until its buffer is full */
        in->work += (int64_t)count;
    else if (count > 0 && in->at > first)
        in->work += in->at - first;
    *out_n = count;
    return ST_OK;
}

typedef struct long_items {
    int count, n_refused;
    size_t text_bytes;
    json_place refused;
} long_items;

static status on_long_item(void *user, const json_value *item, const json_place *at)
{
    long_items *got = (long_items *)user;
    got->count++;
    if (!item) {
        got->n_refused++;
        got->refused = *at;
    } else if (json_find(item, "t")) {
        got->text_bytes = json_text_size(json_find(item, "t"));
    }
    return ST_OK;
}

/* Counts work instead of time: the bytes read, every repeated reading included, are a few times
 * those of the text. With pieces of a constant 256 KiB they would be 8 times a text of 4 MiB and
 * 128 times one of 64 MiB. */
static void test_stream__reading_a_long_text_is_linear(void **state)
{
    (void)state;
    for (int64_t bytes = 4 << 20; bytes <= 16 << 20; bytes *= 2) {
        long_input in = {"[{\"a\": 1},\n{\"t\": \"", "lorem \\\" ipsum ", "\"},\n{\"a\": 2}]", 0};
        long_items got = {0};
        in.bytes = bytes / 15 * 15;
        in.most = SIZE_MAX;
        assert_ok(json_stream_from("s", next_of_long, &in, NULL, NULL, on_long_item, &got));
        assert_int_equal(got.count, 3);
        assert_int_equal(got.n_refused, 0);
        assert_int_equal(got.text_bytes, bytes / 15 * 14);
        print_message("a text of %lld bytes: %.2f times read\n", (long long)bytes,
                      (double)in.work / (double)bytes);
        assert_in_range(in.work, bytes, 4 * bytes);
    }
}

/* The result is the same if the reader gives only 4 KiB at a time. */
static void test_stream__a_long_text_in_small_pieces(void **state)
{
    (void)state;
    long_input in = {"[{\"t\": \"", "\\u00e9\\\\", "\"}]", 8 << 19};
    long_items got = {0};
    in.most = 4096;
    assert_ok(json_stream_from("s", next_of_long, &in, NULL, NULL, on_long_item, &got));
    assert_int_equal(got.text_bytes, 3 << 19);
}

/* An item that is too long, for whatever reason, is handed out as a place without a value, and the
 * items around it are handed out as usual. */
static void test_stream__steps_over_a_long_item(void **state)
{
    static const struct {
        const char *before, *filling, *after;
        int64_t bytes;
        int64_t offset;
    } cases[] = {
        {"[{\"a\": 1},\n{\"t\": \"", "x\\\"]}", "\"},\n{\"a\": 2}]", JSON_ITEM_BYTES + 4, 11},
        {"[{\"a\": 1},\n\"", "x\\\"]}\\\\ ", "\",\n{\"a\": 2}]", JSON_ITEM_BYTES + (1 << 20), 11},
        {"[{\"a\": 1},\n{\"t\": [0", ",0", "]},\n{\"a\": 2}]", 2 * JSON_ITEM_VALUES + (1 << 19),
         11},
        {"{\"q\": [{\"a\": 1},\n{\"t\": [1", ", \"]\\\"}\"              ", "]},\n{\"a\": 2}]}",
         JSON_ITEM_BYTES, 17},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        long_input in = {cases[i].before, cases[i].filling, cases[i].after, 0};
        long_items got = {0};
        const int64_t step = (int64_t)strlen(in.filling);
        in.bytes = (cases[i].bytes + step - 1) / step * step;
        in.most = SIZE_MAX;
        assert_ok(json_stream_from("s", next_of_long, &in, in.before[0] == '{' ? "q" : NULL, NULL,
                                   on_long_item, &got));
        assert_int_equal(got.count, 3);
        assert_int_equal(got.n_refused, 1);
        assert_int_equal(got.refused.offset, cases[i].offset);
        assert_int_equal(got.refused.line, 2);
        assert_int_equal(got.refused.bytes, (int64_t)(strlen(in.before) + strcspn(in.after, ",")) +
                                                in.bytes - cases[i].offset);
    }
}

/* What is too long outside the items, a number of too many digits, and an error after a long item
 * end the reading. */
static void test_stream__refuses_what_is_long_elsewhere(void **state)
{
    static const struct {
        const char *before, *filling, *after, *words;
        int64_t bytes;
    } cases[] = {
        {"{\"info\":\n\"", "xyz ", "\", \"q\": []}", "s:2: a text longer than 64 MiB", 65 << 20},
        {"{\"q\": [", "7", "]}", "a number of more than 511 digits", 1 << 20},
        {"{\"q\": [{\"t\": \"", "xyz ", "\"},,]}", "s:1: not JSON", 65 << 20},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        long_input in = {cases[i].before, cases[i].filling, cases[i].after, cases[i].bytes};
        long_items got = {0};
        in.most = SIZE_MAX;
        assert_fails(ST_BAD_INPUT,
                     json_stream_from("s", next_of_long, &in, "q", NULL, on_long_item, &got),
                     cases[i].words);
    }
}

static void test_load__names_a_missing_file(void **state)
{
    (void)state;
    json_value *value = NULL;
    assert_fails(ST_NO_INPUT, json_load("/nowhere/x.json", &value), "/nowhere/x.json");
    assert_fails(ST_IO, json_load("/tmp", &value), "/tmp");
    char *folder = harness_temp(), *path = write_file(folder, "[1,2]");
    assert_ok(json_load(path, &value));
    assert_int_equal(json_count(value), 2);
    json_free(&value);
    free(path);
    harness_remove(&folder);
}

static void test_writer__reads_back(void **state)
{
    (void)state;
    json_writer writer;
    json_writer_init(&writer);
    json_begin_array(&writer);
    json_put_real(&writer, 0.1);
    json_put_real(&writer, 5e-324);
    json_put_real(&writer, 3);
    json_put_real(&writer, 1.0 / 0.0);
    json_put_text(&writer, "a\"\\\n\x01\x7f \xC3\xA9 \xFF|\0", 13);
    json_put_bool(&writer, true);
    json_put_null(&writer);
    json_put_raw(&writer, "{\"k\":1}", 7);
    json_begin_object(&writer);
    json_put_key_int(&writer, "k", INT64_MIN);
    json_end_object(&writer);
    json_end_array(&writer);
    char *text;
    size_t size;
    assert_ok(json_writer_take(&writer, &text, &size));
    assert_string_equal(
        text, "[0.1,5e-324,3.0,null,\"a\\\"\\\\\\n\\u0001\\u007f \xC3\xA9 \xEF\xBF\xBD|\\u0000\","
              "true,null,{\"k\":1},{\"k\":-9223372036854775808}]");
    json_value *value = parse_text(text);
    assert_true(json_real(json_item(value, 0), 0) == 0.1);
    assert_true(json_int(json_find(json_item(value, 8), "k"), 0) == INT64_MIN);
    json_free(&value);
    free(text);
    json_writer_done(&writer);
}

static void test_writer__members(void **state)
{
    (void)state;
    json_value *parsed = parse_text("[1,{\"x\":null}]");
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_put_key_text(&writer, "text", "ab", 1);
    json_put_key_cstr(&writer, "cstr", "ab");
    json_put_key_int(&writer, "int", -7);
    json_put_key_real(&writer, "real", 0.5);
    json_put_key_bool(&writer, "bool", false);
    json_put_key_null(&writer, "null");
    json_put_key_value(&writer, "value", parsed);
    json_put_key_raw(&writer, "raw", "[]", 2);
    json_begin_key_object(&writer, "object");
    json_begin_key_array(&writer, "array");
    json_put_int(&writer, 1);
    json_end_array(&writer);
    json_end_object(&writer);
    json_end_object(&writer);
    json_free(&parsed);
    char *text;
    size_t size;
    assert_ok(json_writer_take(&writer, &text, &size));
    assert_string_equal(text,
                        "{\"text\":\"a\",\"cstr\":\"ab\",\"int\":-7,\"real\":0.5,\"bool\":false,"
                        "\"null\":null,\"value\":[1,{\"x\":null}],\"raw\":[],"
                        "\"object\":{\"array\":[1]}}");
    free(text);
    json_writer_done(&writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse__every_type),
        cmocka_unit_test(test_parse__large_object_is_indexed),
        cmocka_unit_test(test_parse__refuses),
        cmocka_unit_test(test_parse__refuses_half_a_surrogate_pair),
        cmocka_unit_test(test_parse__refuses_too_many_values),
        cmocka_unit_test(test_want__names_key_and_types),
        cmocka_unit_test(test_stream__hands_out_items_with_offsets),
        cmocka_unit_test(test_stream__leaves_a_member_out),
        cmocka_unit_test(test_stream__reads_a_file_longer_than_its_buffer),
        cmocka_unit_test(test_stream__surrogate_pairs_may_lie_across_pieces),
        cmocka_unit_test(test_stream__reading_a_long_text_is_linear),
        cmocka_unit_test(test_stream__a_long_text_in_small_pieces),
        cmocka_unit_test(test_stream__steps_over_a_long_item),
        cmocka_unit_test(test_stream__refuses_what_is_long_elsewhere),
        cmocka_unit_test(test_load__names_a_missing_file),
        cmocka_unit_test(test_writer__reads_back),
        cmocka_unit_test(test_writer__members),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
