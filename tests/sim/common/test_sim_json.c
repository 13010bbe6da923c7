/* SPDX-License-Identifier: Apache-2.0 */
/* The fast reader of the simulators against json_parse: what it reads it reads alike, and it reads
 * nothing that json_parse refuses. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/common/sim_json.h"
#include "tests/sim/common/sim_random.h"

static sim_json reader;
static arena memory;

/* The text of a value, with all of its members in order. */
static char *written(const json_value *value, size_t *out_size)
{
    json_writer writer;
    char *text;
    json_writer_init(&writer);
    json_put_value(&writer, value);
    assert_ok(json_writer_take(&writer, &text, out_size));
    json_writer_done(&writer);
    return text;
}

/* Reads a text with both. Returns whether the fast one did. */
static bool reads_alike(const char *text, size_t size)
{
    json_value own, *other;
    size_t own_size, other_size;
    if (!sim_json_read(&reader, text, size, &memory, &own))
        return false;
    assert_ok(json_parse(text, size, "t", &other));
    char *one = written(&own, &own_size), *two = written(other, &other_size);
    assert_int_equal(own_size, other_size);
    assert_memory_equal(one, two, own_size);
    free(one);
    free(two);
    json_free(&other);
    return true;
}

static bool reads(const char *text)
{
    return reads_alike(text, strlen(text));
}

static void put_random(json_writer *writer, sim_random *luck, int depth)
{
    static const char *const texts[] = {"",         "plain",      "with \"quotes\"",
                                        "\\ and /", "\n\r\t\b\f", "~ "};
    const int64_t kind = sim_random_between(luck, 0, depth > 0 ? 6 : 4),
                  count = sim_random_between(luck, 0, 12);
    char key[24];
    switch (kind) {
    case 0:
        json_put_int(writer, sim_random_between(luck, -999999999999999999, 999999999999999999));
        break;
    case 1:
        json_put_real(writer, (double)sim_random_between(luck, -1000000, 1000000) / 640);
        break;
    case 2:
        json_put_bool(writer, sim_random_chance(luck, 1, 2));
        break;
    case 3:
        json_put_null(writer);
        break;
    case 4:
        json_put_cstr(writer, texts[sim_random_below(luck, sizeof texts / sizeof *texts)]);
        break;
    case 5:
        json_begin_array(writer);
        for (int64_t i = 0; i < count; i++)
            put_random(writer, luck, depth - 1);
        json_end_array(writer);
        break;
    default:
        json_begin_object(writer);
        for (int64_t i = 0; i < count; i++) {
            snprintf(key, sizeof key, "key %lld", (long long)i);
            json_put_key(writer, key);
            put_random(writer, luck, depth - 1);
        }
        json_end_object(writer);
    }
}

static char *random_text(sim_random *luck, size_t *out_size)
{
    json_writer writer;
    char *text;
    json_writer_init(&writer);
    put_random(&writer, luck, 4);
    assert_ok(json_writer_take(&writer, &text, out_size));
    json_writer_done(&writer);
    return text;
}

static void test_sim_json__reads_what_the_writer_writes(void **state)
{
    (void)state;
    sim_random luck = sim_random_of(harness_seed());
    for (int i = 0; i < 2000; i++) {
        size_t size;
        char *text = random_text(&luck, &size);
        assert_true(reads_alike(text, size));
        free(text);
    }
}

static void test_sim_json__reads_nothing_that_is_refused(void **state)
{
    (void)state;
    static const char bytes[] = "{}[]\",:\\0123456789.eE-+tfnu \x01\xC3";
    sim_random luck = sim_random_of(harness_seed() + 1);
    int read = 0;
    for (int i = 0; i < 20000; i++) {
        size_t size;
        char *text = random_text(&luck, &size);
        const size_t at = sim_random_below(&luck, size);
        text[at] = bytes[sim_random_below(&luck, sizeof bytes - 1)];
        if (sim_random_chance(&luck, 1, 4))
            size = at;
        read += reads_alike(text, size);
        free(text);
    }
    assert_in_range(read, 1000, 19000); /* both kinds were among them */
}

static void test_sim_json__leaves_the_rest_alone(void **state)
{
    (void)state;
    assert_true(reads("{\"a\":[1,-2,3.5,1e3,true,false,null,\"\\\"x\"]}"));
    static const char *const others[] = {"",
                                         " 1",
                                         "1 ",
                                         "[1, 2]",
                                         "\"\\u0041\"",
                                         "\"\xC3\xA4\"",
                                         "01",
                                         "1.",
                                         "1e",
                                         "-",
                                         "{\"a\":1,\"a\":2}",
                                         "[1,]",
                                         "{\"a\"}",
                                         "\"\\x\"",
                                         "nul",
                                         "1e999",
                                         "[1]]",
                                         "\"a",
                                         "1234567890123456789"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(reads(others[i]));
}

static int forget(void **state)
{
    (void)state;
    sim_json_done(&reader);
    arena_done(&memory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_json__reads_what_the_writer_writes),
        cmocka_unit_test(test_sim_json__reads_nothing_that_is_refused),
        cmocka_unit_test(test_sim_json__leaves_the_rest_alone),
    };
    return cmocka_run_group_tests(tests, NULL, forget);
}
