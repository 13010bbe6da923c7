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
    json_value *v = NULL;
    assert_ok(json_parse(text, strlen(text), "t.json", &v));
    return v;
}

static void refuse_json(const char *text, const char *words)
{
    json_value *v = NULL;
    assert_fails(ST_BAD_INPUT, json_parse(text, strlen(text), "t.json", &v), words);
    assert_null(v);
}

static void test_parse__every_type(void **state)
{
    (void)state;
    json_value *v =
        parse_text(" {\"a\": [1, -2.5, true, null, \"x\\u0000\\u00e9\"], \"b\": {}, "
                   "\"c\": 9223372036854775807, \"d\": 1e3, \"e\": 9223372036854775808}\n");
    assert_int_equal(json_typeof(v), JSON_OBJECT);
    assert_int_equal(json_count(v), 5);
    const json_value *a = json_find(v, "a");
    assert_int_equal(json_count(a), 5);
    assert_int_equal(json_int(json_item(a, 0), -1), 1);
    assert_true(json_real(json_item(a, 1), 0) == -2.5);
    assert_true(json_real(json_item(a, 0), 0) == 1);
    assert_true(json_bool(json_item(a, 2), false));
    assert_int_equal(json_typeof(json_item(a, 3)), JSON_NULL);
    assert_int_equal(json_text_size(json_item(a, 4)), 4);
    assert_memory_equal(json_text(json_item(a, 4), ""), "x\0\xC3\xA9", 5);
    assert_null(json_item(a, 5));
    assert_null(json_find(a, "a"));
    assert_null(json_find(v, "z"));
    assert_true(json_int(json_find(v, "c"), 0) == INT64_MAX);
    assert_int_equal(json_typeof(json_find(v, "d")), JSON_REAL);
    assert_int_equal(json_typeof(json_find(v, "e")), JSON_REAL);
    const char *key = NULL;
    assert_non_null(json_member(v, 1, &key));
    assert_string_equal(key, "b");
    assert_int_equal(json_int(json_find(v, "b"), 7), 7);
    json_free(&v);
    json_free(&v);
}

static void test_parse__large_object_is_indexed(void **state)
{
    (void)state;
    enum { N = 5000 };
    json_writer w;
    json_writer_init(&w);
    json_begin_object(&w);
    for (int i = 0; i < N; i++) {
        char key[32];
        snprintf(key, sizeof key, "key %d", i);
        json_put_key_int(&w, key, i);
    }
    json_end_object(&w);
    char *text;
    size_t size;
    assert_ok(json_writer_take(&w, &text, &size));
    json_value *v = NULL;
    assert_ok(json_parse(text, size, "t", &v));
    for (int i = 0; i < N; i++) {
        const char *key;
        const json_value *m = json_member(v, (size_t)i, &key);
        assert_ptr_equal(json_find(v, key), m);
        assert_int_equal(json_int(m, -1), i);
    }
    assert_null(json_find(v, "key 5000"));
    json_free(&v);
    memcpy(strstr(text, "key 4999"), "key 1234", 8);
    assert_fails(ST_BAD_INPUT, json_parse(text, size, "t", &v), "\"key 1234\" twice");
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
    enum { N = 10 << 20 };
    json_value *v = NULL;
    char *text = (char *)malloc(2 * N);
    (void)state;
    assert_non_null(text);
    for (int i = 0; i < N; i++)
        memcpy(text + 2 * i, i ? ",0" : "[0", 2);
    assert_fails(ST_BAD_INPUT, json_parse(text, 2 * N, "t", &v), "values");
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
    json_value *v =
        parse_text("[\"\\ud83d\\ude00\", \"\\uD83D\\uDE00\\ud83d\\ude01\", \"\\\\ud83d\"]");
    assert_string_equal(json_text(json_item(v, 0), ""), "\U0001F600");
    assert_string_equal(json_text(json_item(v, 1), ""), "\U0001F600\U0001F601");
    assert_string_equal(json_text(json_item(v, 2), ""), "\\ud83d");
    json_free(&v);
}

static void test_want__names_key_and_types(void **state)
{
    (void)state;
    json_value *v = parse_text(
        "{\"text_config\": {\"hidden_size\": \"64\"}, \"a.b\": 3, \"r\": 2, \"y\": true}");
    bool y = false;
    int64_t i;
    double r;
    const char *s;
    const json_value *a;
    assert_ok(json_want_int(v, "a.b", "c.json", &i));
    assert_int_equal(i, 3);
    assert_ok(json_want_real(v, "r", "c.json", &r));
    assert_ok(json_want_bool(v, "y", "c.json", &y));
    assert_true(y);
    assert_fails(ST_BAD_INPUT, json_want_bool(v, "r", "c.json", &y),
                 "\"r\": expected true or false, found an integer");
    assert_ok(json_want_text(v, "text_config.hidden_size", "c.json", &s));
    assert_string_equal(s, "64");
    assert_fails(ST_BAD_INPUT, json_want_int(v, "text_config.hidden_size", "c.json", &i),
                 "c.json: \"text_config.hidden_size\": expected an integer, found a text");
    assert_fails(ST_BAD_INPUT, json_want_array(v, "zz", "c.json", &a), "\"zz\" is missing");
    assert_fails(ST_BAD_INPUT, json_want_int(json_find(v, "r"), "x", "c.json", &i), "an object");
    json_free(&v);
}

typedef struct seen {
    int n;
    int64_t sum;
    json_place last;
    int stop_at;
} seen;

static status each(void *user, const json_value *item, const json_place *at)
{
    seen *s = (seen *)user;
    int64_t id;
    TRY(json_want_int(item, "question_id", "item", &id));
    s->sum += id;
    s->last = *at;
    if (++s->n == s->stop_at)
        return FAIL(ST_STOPPED, "enough");
    return ST_OK;
}

static char *write_file(const char *folder, const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/q.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return strdup(path);
}

static void test_stream__hands_out_items_with_offsets(void **state)
{
    (void)state;
    char *folder = harness_temp();
    const char *text = "{\"info\": {\"questions\": [9]}, \"n\": [[1], {}],\n\"questions\": "
                       "[{\"question_id\": 1, \"x\": [{}]}, {\"question_id\": 20}],\n\"z\": 1}";
    char *path = write_file(folder, text);
    seen s = {0};
    assert_ok(json_stream_array(path, "questions", NULL, each, &s));
    assert_int_equal(s.n, 2);
    assert_int_equal(s.sum, 21);
    assert_int_equal(s.last.offset, strstr(text, "{\"question_id\": 20}") - text);
    assert_int_equal(s.last.bytes, strlen("{\"question_id\": 20}"));
    assert_int_equal(s.last.line, 2);
    seen stop = {.stop_at = 1};
    assert_fails(ST_STOPPED, json_stream_array(path, "questions", NULL, each, &stop), "enough");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "annotations", NULL, each, &s),
                 "no member \"annotations\"");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "z", NULL, each, &s), "expected an array");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, NULL, NULL, each, &s),
                 "top level: expected");
    free(path);
    path = write_file(folder, "[{\"question_id\": 3}]");
    seen top = {0};
    assert_ok(json_stream_array(path, NULL, NULL, each, &top));
    assert_int_equal(top.sum, 3);
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "questions", NULL, each, &s), "an object");
    free(path);
    path = write_file(folder, "{\"questions\": [{\"question_id\": 1},\n{\"question_id\": 2},]}");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "questions", NULL, each, &s), "q.json:2");
    free(path);
    path = write_file(folder, "{\"questions\": [{\"question_id\": 1}");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "questions", NULL, each, &s), "premature");
    free(path);
    path = write_file(folder, "{\"questions\": [], \"questions\": []}");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, "questions", NULL, each, &s), "twice");
    free(path);
    harness_remove(&folder);
}

typedef struct kept {
    int n;
    char text[512];
} kept;

static status keep_item(void *user, const json_value *item, const json_place *at)
{
    kept *k = (kept *)user;
    json_writer w;
    char *text;
    size_t size;
    assert_true(at->bytes > 0);
    json_writer_init(&w);
    json_put_value(&w, item);
    TRY(json_writer_take(&w, &text, &size));
    snprintf(k->text + strlen(k->text), sizeof k->text - strlen(k->text), "%s\n", text);
    free(text);
    k->n++;
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
    kept k = {0};
    assert_ok(json_stream_array(path, "q", "x", keep_item, &k));
    assert_int_equal(k.n, 7);
    assert_string_equal(k.text, "{\"a\":1,\"x\":null,\"z\":{\"x\":2}}\n{\"x\":null}\n"
                                "{\"x\":null,\"y\":\"x\"}\n{\"x\":null}\n{\"x\":null}\n"
                                "{\"x\":null,\"xx\":[\"x\"]}\n{}\n");
    free(path);
    /* what is left out must still be valid JSON */
    path = write_file(folder, "[{\"x\": [1, {\"y\" 2}]}]");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, NULL, "x", keep_item, &k), "not JSON");
    free(path);
    path = write_file(folder, "[{\"x\": [\"\xed\xa0\x80\"]}]");
    assert_fails(ST_BAD_INPUT, json_stream_array(path, NULL, "x", keep_item, &k), "UTF8");
    free(path);
    char deep[1024] = "[{\"x\": ";
    memset(deep + strlen(deep), '[', 300);
    path = write_file(folder, deep);
    assert_fails(ST_BAD_INPUT, json_stream_array(path, NULL, "x", keep_item, &k), "nested");
    free(path);
    harness_remove(&folder);
}

/* A file longer than the read buffer: tokens and lines lie across its ends, and an error far into
 * the file is named with its place. */
static void test_stream__reads_a_file_longer_than_its_buffer(void **state)
{
    (void)state;
    enum { N = 20000 };
    char *folder = harness_temp(), path[4096];
    snprintf(path, sizeof path, "%s/big.json", folder);
    for (int bad = 0; bad < 2; bad++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs("{\"questions\": [", f);
        for (int i = 0; i < N; i++)
            fprintf(f, "%s\n{\"question_id\": %d, \"question\": \"what colour \\u00e9 is it?\"}",
                    i ? "," : "", i);
        fputs(bad ? ",]}" : "]}", f);
        fclose(f);
        seen s = {0};
        if (bad)
            assert_fails(ST_BAD_INPUT, json_stream_array(path, "questions", NULL, each, &s),
                         "big.json:20001:");
        else
            assert_ok(json_stream_array(path, "questions", NULL, each, &s));
        assert_int_equal(s.n, N);
        assert_int_equal(s.sum, (int64_t)N * (N - 1) / 2);
        assert_int_equal(s.last.line, N + 1);
        assert_int_equal(s.last.bytes, strlen("{\"question_id\": 19999, \"question\": "
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
    pieces *p = (pieces *)input;
    size_t n = strnlen(p->rest, p->first < size ? p->first : size);
    memcpy(to, p->rest, n);
    p->rest += n;
    p->first = 1;
    *out_n = n;
    return ST_OK;
}

/* A surrogate pair may lie across two pieces, wherever it is cut. */
static void test_stream__surrogate_pairs_may_lie_across_pieces(void **state)
{
    static const char good[] = "[{\"a\": 1},\n{\"a\": \"x\\ud83d\\ude00y\"}]";
    static const char bad[] = "[{\"a\": 1},\n{\"a\": \"x\\ud83d\\u0041y\"}]";
    (void)state;
    for (size_t first = 1; first < sizeof good; first++) {
        pieces p = {good, first};
        kept k = {0};
        assert_ok(json_stream_from("s", next_piece, &p, NULL, NULL, keep_item, &k));
        assert_string_equal(k.text, "{\"a\":1}\n{\"a\":\"x\U0001F600y\"}\n");
        p = (pieces){bad, first};
        k = (kept){0};
        assert_fails(ST_BAD_INPUT, json_stream_from("s", next_piece, &p, NULL, NULL, keep_item, &k),
                     "s:2: not JSON: an escaped surrogate without the other half (column 9, "
                     "byte 19)");
        assert_string_equal(k.text, "{\"a\":1}\n"); /* the item before the error was handed out */
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

/* Writes bytes [at, at + n) of the endless repetition of text. */
static void repeat(char *to, const char *text, int64_t at, int64_t n)
{
    const int64_t step = (int64_t)strlen(text);
    for (int64_t i = 0; i < n && i < step; i++)
        to[i] = text[(at + i) % step];
    for (int64_t had = step; had < n; had *= 2)
        memcpy(to + had, to, (size_t)(had < n - had ? had : n - had));
}

static status next_of_long(void *input, void *to, size_t size, size_t *out_n)
{
    long_input *l = (long_input *)input;
    const int64_t first = (int64_t)strlen(l->before), last = first + l->bytes;
    const int64_t end = last + (int64_t)strlen(l->after);
    const int64_t most = (int64_t)(size < l->most ? size : l->most);
    size_t n = 0;
    while ((int64_t)n < most && l->at < end) {
        const bool filling = l->at >= first && l->at < last;
        const int64_t left = most - (int64_t)n, rest = last - l->at;
        const int64_t some = filling ? rest < left ? rest : left : 1;
        if (filling)
            repeat((char *)to + n, l->filling, l->at - first, some);
        else
            ((char *)to)[n] = l->at < first ? l->before[l->at] : l->after[l->at - last];
        l->at += some;
        n += (size_t)some;
    }
    if (size > l->most) /* the caller asks again until its buffer is full */
        l->work += (int64_t)n;
    else if (n > 0 && l->at > first)
        l->work += l->at - first;
    *out_n = n;
    return ST_OK;
}

typedef struct long_items {
    int n, n_refused;
    size_t text_bytes;
    json_place refused;
} long_items;

static status on_long_item(void *user, const json_value *item, const json_place *at)
{
    long_items *x = (long_items *)user;
    x->n++;
    if (!item) {
        x->n_refused++;
        x->refused = *at;
    } else if (json_find(item, "t")) {
        x->text_bytes = json_text_size(json_find(item, "t"));
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
        assert_int_equal(got.n, 3);
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
        assert_int_equal(got.n, 3);
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
    json_value *v = NULL;
    assert_fails(ST_NO_INPUT, json_load("/nowhere/x.json", &v), "/nowhere/x.json");
    assert_fails(ST_IO, json_load("/tmp", &v), "/tmp");
    char *folder = harness_temp(), *path = write_file(folder, "[1,2]");
    assert_ok(json_load(path, &v));
    assert_int_equal(json_count(v), 2);
    json_free(&v);
    free(path);
    harness_remove(&folder);
}

static void test_writer__reads_back(void **state)
{
    (void)state;
    json_writer w;
    json_writer_init(&w);
    json_begin_array(&w);
    json_put_real(&w, 0.1);
    json_put_real(&w, 5e-324);
    json_put_real(&w, 3);
    json_put_real(&w, 1.0 / 0.0);
    json_put_text(&w, "a\"\\\n\x01\x7f \xC3\xA9 \xFF|\0", 13);
    json_put_bool(&w, true);
    json_put_null(&w);
    json_put_raw(&w, "{\"k\":1}", 7);
    json_begin_object(&w);
    json_put_key_int(&w, "k", INT64_MIN);
    json_end_object(&w);
    json_end_array(&w);
    char *text;
    size_t size;
    assert_ok(json_writer_take(&w, &text, &size));
    assert_string_equal(
        text, "[0.1,5e-324,3.0,null,\"a\\\"\\\\\\n\\u0001\\u007f \xC3\xA9 \xEF\xBF\xBD|\\u0000\","
              "true,null,{\"k\":1},{\"k\":-9223372036854775808}]");
    json_value *v = parse_text(text);
    assert_true(json_real(json_item(v, 0), 0) == 0.1);
    assert_true(json_int(json_find(json_item(v, 8), "k"), 0) == INT64_MIN);
    json_free(&v);
    free(text);
    json_writer_done(&w);
}

static void test_writer__members(void **state)
{
    (void)state;
    json_value *parsed = parse_text("[1,{\"x\":null}]");
    json_writer w;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key_text(&w, "text", "ab", 1);
    json_put_key_cstr(&w, "cstr", "ab");
    json_put_key_int(&w, "int", -7);
    json_put_key_real(&w, "real", 0.5);
    json_put_key_bool(&w, "bool", false);
    json_put_key_null(&w, "null");
    json_put_key_value(&w, "value", parsed);
    json_put_key_raw(&w, "raw", "[]", 2);
    json_begin_key_object(&w, "object");
    json_begin_key_array(&w, "array");
    json_put_int(&w, 1);
    json_end_array(&w);
    json_end_object(&w);
    json_end_object(&w);
    json_free(&parsed);
    char *text;
    size_t size;
    assert_ok(json_writer_take(&w, &text, &size));
    assert_string_equal(text,
                        "{\"text\":\"a\",\"cstr\":\"ab\",\"int\":-7,\"real\":0.5,\"bool\":false,"
                        "\"null\":null,\"value\":[1,{\"x\":null}],\"raw\":[],"
                        "\"object\":{\"array\":[1]}}");
    free(text);
    json_writer_done(&w);
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
