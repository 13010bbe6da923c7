/* SPDX-License-Identifier: Apache-2.0 */
/* Compares ids, labels and positions of conversations with the reference's processor and its
 * get_rope_index. The cases are those of tests/golden/chat.json, made by make_chat.py there. Each
 * is given as turns and as the records that a conversation file would hold, with the tiny tokenizer
 * and, if the shared data is there, with the published one. $TESSERA_CHAT_CASES names another file
 * of cases. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "prepd/dataset/adapters/chat_record.h"
#include "prepd/worker/row.h"

typedef struct fixture {
    tokenizer *vocabulary;
    tokenizer_scratch *scratch;
    chat_ids ids;
    conf options;
    arena memory;
} fixture;

static char *source_path(const char *relative)
{
    const char *source = getenv("TESSERA_SOURCE");
    char *path = NULL;
    assert_true(asprintf(&path, "%s/%s", source ? source : ".", relative) > 0);
    return path;
}

static void *take_array(arena *memory, size_t count, size_t size)
{
    void *array;
    assert_ok(arena_calloc(memory, count ? count : 1, size, &array));
    return array;
}

static int role_of(const char *name)
{
    return strcmp(name, "system") == 0 ? ROLE_SYSTEM
           : strcmp(name, "user") == 0 ? ROLE_USER
                                       : ROLE_ASSISTANT;
}

/* Makes a sample of the case's turns, and lists the grids of its pictures in order. */
static void read_sample(const json_value *turns, arena *memory, sample *smp, fit_grid **out_grids)
{
    const size_t count = json_count(turns);
    fit_grid *grids = take_array(memory, 64, sizeof *grids);
    *smp = (sample){.name = "golden",
                    .n_turns = (int32_t)count,
                    .turns = take_array(memory, count, sizeof(turn))};
    for (size_t i = 0; i < count; i++) {
        const json_value *parts = json_find(json_item(turns, i), "parts");
        turn *said = &smp->turns[i];
        said->role = role_of(json_text(json_find(json_item(turns, i), "role"), ""));
        said->trained = said->role == ROLE_ASSISTANT;
        said->n_parts = (int32_t)json_count(parts);
        said->parts = take_array(memory, json_count(parts), sizeof(part));
        for (size_t k = 0; k < json_count(parts); k++) {
            const json_value *value = json_item(parts, k);
            if (json_typeof(value) == JSON_TEXT) {
                said->parts[k] = (part){json_text(value, ""), (int64_t)json_text_size(value), -1};
                continue;
            }
            const int32_t height = (int32_t)json_int(json_item(value, 0), 0);
            const int32_t width = (int32_t)json_int(json_item(value, 1), 0);
            assert_in_range(smp->n_images, 0, 63);
            said->parts[k].image = smp->n_images;
            grids[smp->n_images++] =
                (fit_grid){height * PATCH_SIDE, width * PATCH_SIDE, height, width};
        }
    }
    smp->images = take_array(memory, (size_t)smp->n_images, sizeof(int32_t));
    *out_grids = grids;
}

typedef enum form { TURNS, MESSAGES, LLAVA, N_FORMS } form;

/* Writes the turns as a record, whose content is a list of parts or one text with a mark for each
 * picture. */
static void put_record(const json_value *turns, form how, json_writer *writer)
{
    int n_images = 0;
    json_begin_object(writer);
    json_begin_key_array(writer, how == MESSAGES ? "messages" : "conversations");
    for (size_t i = 0; i < json_count(turns); i++) {
        static const char *const from[] = {"system", "human", "gpt"};
        const char *role = json_text(json_find(json_item(turns, i), "role"), "");
        const json_value *parts = json_find(json_item(turns, i), "parts");
        char text[4096] = "";
        json_begin_object(writer);
        json_put_key_cstr(writer, how == MESSAGES ? "role" : "from",
                          how == MESSAGES ? role : from[role_of(role)]);
        json_put_key(writer, how == MESSAGES ? "content" : "value");
        if (how == MESSAGES)
            json_begin_array(writer);
        for (size_t k = 0; k < json_count(parts); k++) {
            const json_value *value = json_item(parts, k);
            const bool picture = json_typeof(value) != JSON_TEXT;
            n_images += picture;
            if (how == MESSAGES) {
                json_begin_object(writer);
                json_put_key_cstr(writer, "type", picture ? "image" : "text");
                if (!picture)
                    json_put_key_value(writer, "text", value);
                json_end_object(writer);
            } else {
                const char *more = picture ? "<image>" : json_text(value, "");
                assert_true(strlen(text) + strlen(more) < sizeof text);
                strcat(text, more);
            }
        }
        if (how == MESSAGES)
            json_end_array(writer);
        else
            json_put_cstr(writer, text);
        json_end_object(writer);
    }
    json_end_array(writer);
    json_begin_key_array(writer, how == MESSAGES ? "images" : "image");
    for (int k = 0; k < n_images; k++)
        json_put_cstr(writer, "a.jpg");
    json_end_array(writer);
    json_end_object(writer);
}

static void read_record(const json_value *turns, form how, arena *memory, sample *smp)
{
    static const chat_rules rules;
    json_writer writer;
    char *text;
    size_t size;
    json_value *value;
    chat_record record;
    json_writer_init(&writer);
    put_record(turns, how, &writer);
    assert_ok(json_writer_take(&writer, &text, &size));
    json_writer_done(&writer);
    assert_ok(json_parse(text, size, "record", &value));
    assert_ok(chat_record_read(value, &rules, "record", memory, &record));
    json_free(&value);
    free(text);
    assert_int_equal(record.n_images, smp->n_images);
    smp->turns = record.turns;
    smp->n_turns = record.n_turns;
}

static void check_ids(const json_value *ids, const fixture *setup, const row *packed)
{
    int64_t at = 0;
    for (size_t i = 0; i < json_count(ids); i++) {
        const int64_t id = json_int(json_item(ids, i), 0);
        for (int64_t k = 0; k < (id < 0 ? -id : 1); k++, at++) {
            assert_in_range(at, 0, packed->n_tokens - 1);
            assert_int_equal(packed->input_ids[at], id < 0 ? setup->ids.image_pad : id);
        }
    }
    assert_int_equal(at, packed->n_tokens);
}

static void check_labels(const json_value *trained, const row *packed)
{
    size_t k = 0;
    for (int64_t i = 0; i < packed->n_tokens; i++) {
        const json_value *range = json_item(trained, k);
        const bool in = range && i >= json_int(json_item(range, 0), 0);
        assert_int_equal(packed->labels[i], in ? packed->input_ids[i] : NO_LABEL);
        k += in && i + 1 == json_int(json_item(range, 1), 0);
    }
    assert_int_equal(k, json_count(trained));
}

static void check_positions(const json_value *positions, const row *packed)
{
    assert_int_equal(json_count(positions), 3);
    for (size_t section = 0; section < 3; section++) {
        const json_value *stream = json_item(positions, section);
        assert_int_equal(json_count(stream), packed->n_tokens);
        for (int64_t i = 0; i < packed->n_tokens; i++)
            assert_int_equal(packed->position_ids[(int64_t)section * packed->n_tokens + i],
                             json_int(json_item(stream, (size_t)i), -1));
    }
}

/* Image tokens count the visual rows one after another; other tokens have none. */
static void check_visual_rows(const fixture *setup, const row *packed)
{
    int32_t next = 0;
    for (int64_t i = 0; i < packed->n_tokens; i++)
        assert_int_equal(packed->visual_row[i],
                         packed->input_ids[i] == setup->ids.image_pad ? next++ : -1);
}

static void check_case(const json_value *one, const char *which, form how, fixture *setup)
{
    const json_value *want = json_find(one, which);
    sample smp;
    fit_grid *grids;
    chat_text text;
    row packed;
    arena_reset(&setup->memory);
    assert_non_null(want);
    read_sample(json_find(one, "turns"), &setup->memory, &smp, &grids);
    if (how != TURNS)
        read_record(json_find(one, "turns"), how, &setup->memory, &smp);
    chat_visual *visuals = take_array(&setup->memory, (size_t)smp.n_images, sizeof *visuals);
    for (int32_t k = 0; k < smp.n_images; k++)
        visuals[k].tokens = fit_tokens(grids[k]);
    assert_ok(chat_encode(setup->vocabulary, setup->scratch, &setup->ids, &setup->options, &smp,
                          visuals, &setup->memory, &text));
    const document doc = {.text = text, .grids = grids, .n_images = smp.n_images};
    assert_ok(row_build(&doc, 1, &setup->memory, &packed));
    check_ids(json_find(want, "ids"), setup, &packed);
    check_labels(json_find(want, "trained"), &packed);
    check_positions(json_find(want, "positions"), &packed);
    check_visual_rows(setup, &packed);
}

static void check_all(const char *tokenizer_folder, const char *which)
{
    const char *other = getenv("TESSERA_CHAT_CASES");
    char *path = other ? strdup(other) : source_path("tests/golden/chat.json");
    json_value *file;
    fixture setup = {.options = {.data_system = ""}};
    assert_ok(json_load(path, &file));
    assert_ok(tokenizer_load(tokenizer_folder, &setup.vocabulary));
    assert_ok(tokenizer_scratch_new(setup.vocabulary, &setup.scratch));
    assert_ok(chat_ids_find(setup.vocabulary, &setup.ids));
    arena_init(&setup.memory, 0);
    const json_value *cases = json_find(file, "cases");
    assert_true(json_count(cases) > 0);
    for (size_t i = 0; i < json_count(cases); i++)
        for (form how = TURNS; how < N_FORMS; how++)
            check_case(json_item(cases, i), which, how, &setup);
    print_message("%zu cases, %s tokenizer\n", json_count(cases), which);
    arena_done(&setup.memory);
    tokenizer_scratch_free(&setup.scratch);
    tokenizer_free(&setup.vocabulary);
    json_free(&file);
    free(path);
}

static void test_chat_golden__tiny_tokenizer(void **state)
{
    char *folder = source_path("tests/golden/tokenizer/pairs");
    (void)state;
    check_all(folder, "tiny");
    free(folder);
}

static void test_chat_golden__published_tokenizer(void **state)
{
    char *folder = harness_shared("data/tokenizer");
    (void)state;
    if (!folder)
        HARNESS_SKIP("no published tokenizer");
    check_all(folder, "published");
    free(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_golden__tiny_tokenizer),
        cmocka_unit_test(test_chat_golden__published_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
