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
#include "prepd/dataset/chat_record.h"
#include "prepd/worker/row.h"

typedef struct fixture {
    tokenizer *t;
    tokenizer_scratch *s;
    chat_ids ids;
    conf c;
    arena a;
} fixture;

static char *source_path(const char *relative)
{
    const char *source = getenv("TESSERA_SOURCE");
    char *path = NULL;
    assert_true(asprintf(&path, "%s/%s", source ? source : ".", relative) > 0);
    return path;
}

static void *take_array(arena *a, size_t n, size_t size)
{
    void *p;
    assert_ok(arena_calloc(a, n ? n : 1, size, &p));
    return p;
}

static int role_of(const char *name)
{
    return strcmp(name, "system") == 0 ? ROLE_SYSTEM
           : strcmp(name, "user") == 0 ? ROLE_USER
                                       : ROLE_ASSISTANT;
}

/* Makes a sample of the case's turns, and lists the grids of its pictures in order. */
static void read_sample(const json_value *turns, arena *a, sample *smp, fit_grid **out_grids)
{
    const size_t n = json_count(turns);
    fit_grid *grids = take_array(a, 64, sizeof *grids);
    *smp =
        (sample){.name = "golden", .n_turns = (int32_t)n, .turns = take_array(a, n, sizeof(turn))};
    for (size_t i = 0; i < n; i++) {
        const json_value *parts = json_find(json_item(turns, i), "parts");
        turn *t = &smp->turns[i];
        t->role = role_of(json_text(json_find(json_item(turns, i), "role"), ""));
        t->trained = t->role == ROLE_ASSISTANT;
        t->n_parts = (int32_t)json_count(parts);
        t->parts = take_array(a, json_count(parts), sizeof(part));
        for (size_t k = 0; k < json_count(parts); k++) {
            const json_value *p = json_item(parts, k);
            if (json_typeof(p) == JSON_TEXT) {
                t->parts[k] = (part){json_text(p, ""), (int64_t)json_text_size(p), -1};
                continue;
            }
            const int32_t h = (int32_t)json_int(json_item(p, 0), 0);
            const int32_t w = (int32_t)json_int(json_item(p, 1), 0);
            assert_in_range(smp->n_images, 0, 63);
            t->parts[k].image = smp->n_images;
            grids[smp->n_images++] = (fit_grid){h * PATCH_SIDE, w * PATCH_SIDE, h, w};
        }
    }
    smp->images = take_array(a, (size_t)smp->n_images, sizeof(int32_t));
    *out_grids = grids;
}

typedef enum form { TURNS, MESSAGES, LLAVA, N_FORMS } form;

/* Writes the turns as a record, whose content is a list of parts or one text with a mark for each
 * picture. */
static void put_record(const json_value *turns, form how, json_writer *w)
{
    int n_images = 0;
    json_begin_object(w);
    json_begin_key_array(w, how == MESSAGES ? "messages" : "conversations");
    for (size_t i = 0; i < json_count(turns); i++) {
        static const char *const from[] = {"system", "human", "gpt"};
        const char *role = json_text(json_find(json_item(turns, i), "role"), "");
        const json_value *parts = json_find(json_item(turns, i), "parts");
        char text[4096] = "";
        json_begin_object(w);
        json_put_key_cstr(w, how == MESSAGES ? "role" : "from",
                          how == MESSAGES ? role : from[role_of(role)]);
        json_put_key(w, how == MESSAGES ? "content" : "value");
        if (how == MESSAGES)
            json_begin_array(w);
        for (size_t k = 0; k < json_count(parts); k++) {
            const json_value *p = json_item(parts, k);
            const bool picture = json_typeof(p) != JSON_TEXT;
            n_images += picture;
            if (how == MESSAGES) {
                json_begin_object(w);
                json_put_key_cstr(w, "type", picture ? "image" : "text");
                if (!picture)
                    json_put_key_value(w, "text", p);
                json_end_object(w);
            } else {
                const char *more = picture ? "<image>" : json_text(p, "");
                assert_true(strlen(text) + strlen(more) < sizeof text);
                strcat(text, more);
            }
        }
        if (how == MESSAGES)
            json_end_array(w);
        else
            json_put_cstr(w, text);
        json_end_object(w);
    }
    json_end_array(w);
    json_begin_key_array(w, how == MESSAGES ? "images" : "image");
    for (int k = 0; k < n_images; k++)
        json_put_cstr(w, "a.jpg");
    json_end_array(w);
    json_end_object(w);
}

static void read_record(const json_value *turns, form how, arena *a, sample *smp)
{
    static const chat_rules rules;
    json_writer w;
    char *text;
    size_t size;
    json_value *v;
    chat_record r;
    json_writer_init(&w);
    put_record(turns, how, &w);
    assert_ok(json_writer_take(&w, &text, &size));
    json_writer_done(&w);
    assert_ok(json_parse(text, size, "record", &v));
    assert_ok(chat_record_read(v, &rules, "record", a, &r));
    json_free(&v);
    free(text);
    assert_int_equal(r.n_images, smp->n_images);
    smp->turns = r.turns;
    smp->n_turns = r.n_turns;
}

static void check_ids(const json_value *ids, const fixture *f, const row *r)
{
    int64_t at = 0;
    for (size_t i = 0; i < json_count(ids); i++) {
        const int64_t id = json_int(json_item(ids, i), 0);
        for (int64_t k = 0; k < (id < 0 ? -id : 1); k++, at++) {
            assert_in_range(at, 0, r->n_tokens - 1);
            assert_int_equal(r->input_ids[at], id < 0 ? f->ids.image_pad : id);
        }
    }
    assert_int_equal(at, r->n_tokens);
}

static void check_labels(const json_value *trained, const row *r)
{
    size_t k = 0;
    for (int64_t i = 0; i < r->n_tokens; i++) {
        const json_value *range = json_item(trained, k);
        const bool in = range && i >= json_int(json_item(range, 0), 0);
        assert_int_equal(r->labels[i], in ? r->input_ids[i] : NO_LABEL);
        k += in && i + 1 == json_int(json_item(range, 1), 0);
    }
    assert_int_equal(k, json_count(trained));
}

static void check_positions(const json_value *positions, const row *r)
{
    assert_int_equal(json_count(positions), 3);
    for (size_t s = 0; s < 3; s++) {
        const json_value *stream = json_item(positions, s);
        assert_int_equal(json_count(stream), r->n_tokens);
        for (int64_t i = 0; i < r->n_tokens; i++)
            assert_int_equal(r->position_ids[(int64_t)s * r->n_tokens + i],
                             json_int(json_item(stream, (size_t)i), -1));
    }
}

/* Image tokens count the visual rows one after another; other tokens have none. */
static void check_visual_rows(const fixture *f, const row *r)
{
    int32_t next = 0;
    for (int64_t i = 0; i < r->n_tokens; i++)
        assert_int_equal(r->visual_row[i], r->input_ids[i] == f->ids.image_pad ? next++ : -1);
}

static void check_case(const json_value *one, const char *which, form how, fixture *f)
{
    const json_value *want = json_find(one, which);
    sample smp;
    fit_grid *grids;
    chat_text text;
    row r;
    arena_reset(&f->a);
    assert_non_null(want);
    read_sample(json_find(one, "turns"), &f->a, &smp, &grids);
    if (how != TURNS)
        read_record(json_find(one, "turns"), how, &f->a, &smp);
    chat_visual *visuals = take_array(&f->a, (size_t)smp.n_images, sizeof *visuals);
    for (int32_t k = 0; k < smp.n_images; k++)
        visuals[k].tokens = fit_tokens(grids[k]);
    assert_ok(chat_encode(f->t, f->s, &f->ids, &f->c, &smp, visuals, &f->a, &text));
    const document d = {.text = text, .grids = grids, .n_images = smp.n_images};
    assert_ok(row_build(&d, 1, &f->a, &r));
    check_ids(json_find(want, "ids"), f, &r);
    check_labels(json_find(want, "trained"), &r);
    check_positions(json_find(want, "positions"), &r);
    check_visual_rows(f, &r);
}

static void check_all(const char *tokenizer_folder, const char *which)
{
    const char *other = getenv("TESSERA_CHAT_CASES");
    char *path = other ? strdup(other) : source_path("tests/golden/chat.json");
    json_value *file;
    fixture f = {.c = {.data_system = ""}};
    assert_ok(json_load(path, &file));
    assert_ok(tokenizer_load(tokenizer_folder, &f.t));
    assert_ok(tokenizer_scratch_new(f.t, &f.s));
    assert_ok(chat_ids_find(f.t, &f.ids));
    arena_init(&f.a, 0);
    const json_value *cases = json_find(file, "cases");
    assert_true(json_count(cases) > 0);
    for (size_t i = 0; i < json_count(cases); i++)
        for (form how = TURNS; how < N_FORMS; how++)
            check_case(json_item(cases, i), which, how, &f);
    print_message("%zu cases, %s tokenizer\n", json_count(cases), which);
    arena_done(&f.a);
    tokenizer_scratch_free(&f.s);
    tokenizer_free(&f.t);
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
