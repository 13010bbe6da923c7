/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of conversations.h: files of conversations as JSON arrays or JSON lines, marks that stand
 * for pictures and videos, weights of answers, and each kind of bad record, which keeps its place
 * and says its cause. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <string.h>

#include "prepd/dataset/dataset.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { PATH = 1024 };

typedef struct fixture {
    char *folder;
    char path[PATH];
    conf options;
    dataset *set;
    arena memory;
} fixture;

static void open_text(fixture *setup, const char *name, const char *text)
{
    setup->folder = harness_temp();
    snprintf(setup->path, sizeof setup->path, "%s/%s", setup->folder, name);
    FILE *to = fopen(setup->path, "w");
    assert_non_null(to);
    fputs(text, to);
    fclose(to);
    setup->options = conf_defaults();
    setup->options.data_format = DATA_CONVERSATIONS;
    setup->options.data_path = setup->path;
    setup->set = NULL;
    arena_init(&setup->memory, 0);
}

static void close_fixture(fixture *setup)
{
    dataset_close(&setup->set);
    arena_done(&setup->memory);
    harness_remove(&setup->folder);
}

static sample fetch_sample(fixture *setup, int64_t index)
{
    sample smp, outline;
    assert_ok(setup->set->adapter->sample(setup->set, index, &setup->memory, &smp));
    assert_ok(setup->set->adapter->outline(setup->set, index, &setup->memory, &outline));
    assert_int_equal(smp.id, index);
    assert_int_equal(smp.n_images, outline.n_images);
    for (int32_t k = 0; k < smp.n_images; k++)
        assert_int_equal(smp.images[k], outline.images[k]);
    assert_true(!smp.cause == !outline.cause);
    return smp;
}

#define TURN(from, value) "{\"from\": \"" from "\", \"value\": \"" value "\"}"
#define LLAVA(image, ...)                                                                          \
    "{\"id\": \"x\", \"image\": " image ", \"conversations\": [" __VA_ARGS__ "]}"

static void test_array__marks_become_images(void **state)
{
    (void)state;
    fixture setup;
    open_text(
        &setup, "a.json",
        "[\n" LLAVA(
            "\"a/1.png\"",
            TURN("human", "<image>\\nWhat?") "," TURN(
                "gpt",
                "A cat")) ",\n" LLAVA("[\"b.jpg\", \"a/1.png\"]",
                                      TURN("system", "Be terse.") "," TURN(
                                          "human",
                                          "From <image> "
                                          "to<image>") "," TURN("gpt",
                                                                "one") "," TURN("human",
                                                                                "and?") "," TURN("g"
                                                                                                 "p"
                                                                                                 "t",
                                                                                                 "t"
                                                                                                 "w"
                                                                                                 "o")) "]");
    assert_ok(dataset_open(&setup.options, &setup.set));
    assert_int_equal(setup.set->adapter->samples(setup.set), 2);
    assert_int_equal(setup.set->adapter->images(setup.set), 2);
    assert_string_equal(setup.set->adapter->root(setup.set), setup.folder);
    sample smp = fetch_sample(&setup, 1);
    assert_string_equal(smp.name, "a.json:3");
    assert_string_equal(setup.set->adapter->image_path(setup.set, smp.images[0]), "b.jpg");
    assert_string_equal(setup.set->adapter->image_path(setup.set, smp.images[1]), "a/1.png");
    assert_int_equal(smp.n_turns, 5);
    assert_int_equal(smp.turns[1].n_parts, 4);
    assert_string_equal(smp.turns[1].parts[0].text, "From ");
    assert_int_equal(smp.turns[1].parts[1].image, 0);
    assert_int_equal(smp.turns[1].parts[3].image, 1);
    assert_true(smp.turns[2].trained && smp.turns[4].trained);
    smp = fetch_sample(&setup, 0);
    assert_int_equal(smp.turns[0].parts[0].image, 0);
    assert_string_equal(smp.turns[0].parts[1].text, "\nWhat?"); /* the text is kept as written */
    close_fixture(&setup);
}

static void test_rules__last_turn_and_trim(void **state)
{
    (void)state;
    fixture setup;
    open_text(&setup, "a.jsonl",
              LLAVA("\"1.png\"", TURN("human", " Really?\\n<image>\\n") "," TURN(
                                     "gpt", "a") "," TURN("human", "b") "," TURN("gpt", " c ")));
    setup.options.data_loss_on = LOSS_ON_LAST;
    setup.options.data_trim = true;
    assert_ok(dataset_open(&setup.options, &setup.set));
    sample smp = fetch_sample(&setup, 0);
    assert_false(smp.turns[1].trained);
    assert_true(smp.turns[3].trained);
    assert_int_equal(smp.turns[0].n_parts, 2);
    assert_string_equal(smp.turns[0].parts[0].text, "Really?");
    assert_string_equal(smp.turns[3].parts[0].text, " c "); /* data.trim does not change answers */
    close_fixture(&setup);
}

static void test_stages__weights_of_parts_turns_and_options(void **state)
{
    (void)state;
    fixture setup;
    open_text(
        &setup, "a.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
        "\"content\": [{\"type\": \"text\", \"text\": \"see \"}, {\"type\": \"text\", "
        "\"text\": \"think \", \"weight\": 0.5}, \"say\"]}, {\"role\": \"user\", \"content\": "
        "\"so?\"}, {\"role\": \"assistant\", \"content\": \"end\", \"weight\": 2}]}\n"
        "{\"img_id\": \"cla\", \"question\": \"How many?\", \"answer\": [\"I count. \", "
        "\"Two.\"]}\n");
    setup.options.data_stage_weights = "0.25,0,3";
    assert_ok(dataset_open(&setup.options, &setup.set));
    sample smp = fetch_sample(&setup, 0);
    assert_int_equal(smp.turns[1].n_parts, 3);
    assert_float_equal(smp.turns[1].weights[0], 0.25, 0);
    /* the part's own weight comes before the option */
    assert_float_equal(smp.turns[1].weights[1], 0.5, 0);
    assert_float_equal(smp.turns[1].weights[2], 3, 0);
    assert_float_equal(smp.turns[3].weights[0], 2, 0);
    smp = fetch_sample(&setup, 1);
    assert_string_equal(setup.set->adapter->image_path(setup.set, smp.images[0]), "cla.jpg");
    assert_int_equal(smp.turns[0].parts[0].image, 0);
    assert_float_equal(smp.turns[1].weights[0], 0.25, 0);
    assert_float_equal(smp.turns[1].weights[1], 0, 0);
    close_fixture(&setup);
    static const char *const bad[] = {"x", "1,", "1,-1", "1;2", "nan"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        open_text(&setup, "a.jsonl", "{}");
        setup.options.data_stage_weights = bad[k];
        if (strcmp(bad[k], "1,") == 0)
            assert_fails(ST_BAD_INPUT,
                         dataset_open(&setup.options, &setup.set) == ST_OK
                             ? FAIL(ST_BAD_INPUT, "%s", fetch_sample(&setup, 0).cause)
                             : ST_OK,
                         "a.jsonl:1");
        else
            assert_fails(ST_CONFIG, dataset_open(&setup.options, &setup.set), "data.stage_weights");
        close_fixture(&setup);
    }
}

static void touch(const fixture *setup, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", setup->folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
}

/* Images and videos come in the order in which the text shows them, whatever list they are in. The
 * frames of a folder are its pictures, ordered by number. */
static void test_videos__may_stand_beside_pictures(void **state)
{
    (void)state;
    static const char *const frames[] = {"f_10.png", "f_2.JPG", "f_1.webp", "notes.txt",
                                         ".hidden.jpg"};
    fixture setup;
    char path[4096];
    open_text(&setup, "a.jsonl",
              "{\"images\": [\"1.png\"], \"videos\": [\"a.mp4\", {\"path\": \"dump\", \"fps\": "
              "\"2\"}], \"messages\": [{\"role\": \"user\", \"content\": "
              "\"<video>then<image><video>?\"}, {\"role\": \"assistant\", \"content\": "
              "\"x\"}]}\n"
              "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"video\", "
              "\"video\": \"dump\", \"sample_fps\": 2}, \"?\"]}, {\"role\": "
              "\"assistant\", \"content\": \"x\"}]}\n"
              "{\"video\": \"dump\", \"fps\": 3, \"question\": \"?\", \"answer\": \"x\"}\n"
              "{\"video\": \"dump\", \"question\": \"?\", \"answer\": \"x\"}\n"
              "{\"image\": \"a.mp4\", \"question\": \"?\", \"answer\": \"x\"}\n"
              "{\"video\": \"a.mp4\", \"question\": \"?\", \"answer\": \"x\"}\n");
    snprintf(path, sizeof path, "%s/dump", setup.folder);
    assert_int_equal(mkdir(path, 0777), 0);
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        snprintf(path, sizeof path, "dump/%s", frames[i]);
        touch(&setup, path);
    }
    setup.options.data_format = DATA_VIDEO;
    setup.options.video_input_frames = 3;
    assert_ok(dataset_open(&setup.options, &setup.set));
    const sample smp = fetch_sample(&setup, 0);
    static const char *const names[] = {"a.mp4", "1.png", "dump"};
    assert_int_equal(smp.n_images, 3);
    for (int32_t k = 0, at = 0; k < 3; k++, at++) {
        image_place place;
        assert_string_equal(setup.set->adapter->image_path(setup.set, smp.images[k]), names[k]);
        dataset_image_place(setup.set, smp.images[k], &place);
        assert_int_equal(place.video, k == 0);
        assert_int_equal(place.n_frames, k == 2 ? 3 : 0);
        at += smp.turns[0].parts[at].image < 0;
        assert_int_equal(smp.turns[0].parts[at].image, k);
    }
    assert_string_equal(setup.set->adapter->frame(setup.set, smp.images[2], 0), "f_1.webp");
    assert_string_equal(setup.set->adapter->frame(setup.set, smp.images[2], 1), "f_2.JPG");
    assert_string_equal(setup.set->adapter->frame(setup.set, smp.images[2], 2), "f_10.png");
    static const char *const others[] = {
        "", "a.mp4", "dump", "dump/", "dump/notes.txt", "f_2.JPG", "dump/../dump/f_2.JPG"};
    assert_true(dataset_image_has(setup.set, smp.images[0], "a.mp4"));
    assert_true(dataset_image_has(setup.set, smp.images[1], "1.png"));
    assert_true(dataset_image_has(setup.set, smp.images[2], "dump/f_2.JPG"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(dataset_image_has(setup.set, smp.images[2], others[i]));
    assert_int_equal(fetch_sample(&setup, 1).images[0], smp.images[2]);
    assert_non_null(strstr(fetch_sample(&setup, 2).cause, "with fps 2, not 3"));
    assert_non_null(strstr(fetch_sample(&setup, 3).cause, "beside its name, as \"fps\""));
    assert_non_null(strstr(fetch_sample(&setup, 4).cause, "shown elsewhere as a video"));
    assert_int_equal(fetch_sample(&setup, 5).images[0], smp.images[0]);
    const hash128 one = setup.set->adapter->identity(setup.set);
    dataset_close(&setup.set);
    setup.options.video_input_frames = 2;
    assert_ok(dataset_open(&setup.options, &setup.set));
    assert_non_null(strstr(fetch_sample(&setup, 0).cause, "video.input_frames"));
    dataset_close(&setup.set);
    setup.options.video_input_frames = 9;
    touch(&setup, "dump/f_11.png");
    assert_ok(dataset_open(&setup.options, &setup.set));
    assert_false(hash_equal(one, setup.set->adapter->identity(setup.set)));
    dataset_close(&setup.set);
    touch(&setup, "dump/f_\xe9.png");
    assert_ok(dataset_open(&setup.options, &setup.set));
    assert_non_null(strstr(fetch_sample(&setup, 1).cause, "name is not UTF-8"));
    close_fixture(&setup);
}

static void test_stat__is_zero_for_what_no_worker_can_read(void **state)
{
    (void)state;
    fixture setup;
    char path[4096];
    int64_t bytes, mtime_ns;
    open_text(&setup, "a.jsonl",
              "{\"image\": \"whole.jpg\", \"question\": \"?\", \"answer\": \"x\"}\n"
              "{\"image\": \"odd.jpg\", \"question\": \"?\", \"answer\": \"x\"}\n"
              "{\"video\": \"dump\", \"fps\": 1, \"question\": \"?\", \"answer\": \"x\"}\n"
              "{\"video\": \"odd.jpg/\", \"question\": \"?\", \"answer\": \"x\"}\n");
    static const char *const folders[] = {"odd.jpg", "dump", "dump/1.jpg"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s/%s", setup.folder, folders[i]);
        assert_int_equal(mkdir(path, 0777), 0);
    }
    touch(&setup, "whole.jpg");
    touch(&setup, "dump/0.jpg");
    setup.options.video_input_frames = 3;
    assert_ok(dataset_open(&setup.options, &setup.set));
    assert_non_null(strstr(fetch_sample(&setup, 3).cause, "is a folder of frames"));
    assert_int_equal(setup.set->adapter->images(setup.set), 3); /* the refused one is not counted */
    for (int64_t j = 0; j < 3; j++) {
        dataset_image_stat(setup.set, j, &bytes, &mtime_ns);
        assert_int_equal(mtime_ns != 0, j == 0);
        assert_int_equal(bytes, 0);
    }
    close_fixture(&setup);
}

static void test_names__absolute_paths_below_the_root_are_accepted(void **state)
{
    (void)state;
    static const char *const ends[] = {"", "/", "//"};
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
        fixture setup;
        char text[1024], root[512];
        open_text(&setup, "a.jsonl", "");
        snprintf(text, sizeof text,
                 "{\"image\": \"%s/a.jpg\", \"question\": \"?\", \"answer\": \"x\"}", setup.folder);
        FILE *to = fopen(setup.path, "w");
        assert_non_null(to);
        fputs(text, to);
        fclose(to);
        snprintf(root, sizeof root, "%s%s", setup.folder, ends[k]);
        setup.options.data_images = root;
        assert_ok(dataset_open(&setup.options, &setup.set));
        const sample smp = fetch_sample(&setup, 0);
        if (smp.cause)
            fail_msg("\"%s\": %s", ends[k], smp.cause);
        assert_string_equal(setup.set->adapter->image_path(setup.set, smp.images[0]), "a.jpg");
        close_fixture(&setup);
    }
}

/* Exported tables have null in the columns that a record lacks. A null member counts as absent, and
 * a part is what its type says. */
static void test_nulls__count_as_absent_members(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "{\"messages\": [{\"role\": \"user\", \"from\": null, \"weight\": null, \"content\": "
        "[{\"type\": "
        "\"image\", \"image\": \"a.jpg\", \"video\": null, \"text\": null}, {\"type\": \"text\", "
        "\"text\": "
        "\"?\", \"image\": null, \"image_url\": null, \"video\": null}]}, {\"role\": "
        "\"assistant\", "
        "\"content\": \"x\", \"value\": null}], \"conversations\": null, \"image\": null, "
        "\"videos\": null}",
        "{\"images\": [\"a.jpg\"], \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
        "\"image\", "
        "\"image\": null, \"path\": null}, \"?\"]}, {\"role\": \"assistant\", \"content\": "
        "\"x\"}]}",
        "{\"messages\": null, \"image\": \"a.jpg\", \"video\": null, \"conversations\": "
        "[{\"role\": null, "
        "\"from\": \"human\", \"content\": null, \"value\": \"<image>?\"}, {\"from\": \"gpt\", "
        "\"value\": "
        "\"x\"}]}",
        "{\"messages\": null, \"conversations\": null, \"image\": null, \"img_id\": \"a\", "
        "\"question\": \"?\", "
        "\"answer\": \"x\"}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"image\": "
        "\"a.jpg\", "
        "\"video\": \"no.mp4\"}, {\"type\": \"text\", \"text\": \"?\", \"image\": \"no.jpg\"}]}, "
        "{\"role\": "
        "\"assistant\", \"content\": \"x\"}]}",
    };
    enum { SAMPLES = sizeof lines / sizeof *lines };
    char text[4096] = "";
    fixture setup;
    for (int k = 0; k < SAMPLES; k++)
        strcat(strcat(text, lines[k]), "\n");
    open_text(&setup, "a.jsonl", text);
    assert_ok(dataset_open(&setup.options, &setup.set));
    assert_int_equal(setup.set->adapter->images(setup.set), 1);
    assert_string_equal(setup.set->adapter->image_path(setup.set, 0), "a.jpg");
    for (int k = 0; k < SAMPLES; k++) {
        const sample smp = fetch_sample(&setup, k);
        if (smp.cause)
            fail_msg("%s", smp.cause);
        assert_int_equal(smp.n_images, 1);
        assert_int_equal(smp.n_turns, 2);
        assert_int_equal(smp.turns[0].n_parts, 2);
        assert_int_equal(smp.turns[0].parts[0].image, 0);
        assert_string_equal(smp.turns[0].parts[1].text, "?");
    }
    close_fixture(&setup);
}

static void test_bad_records__keep_their_place_and_say_why(void **state)
{
    (void)state;
    static const struct {
        const char *line, *cause;
    } cases[] = {
        {LLAVA("\"1.png\"", TURN("human", "no mark") "," TURN("gpt", "a")), "show 0 images"},
        {LLAVA("[]", TURN("human", "<image>") "," TURN("gpt", "a")), "show 1 images"},
        {LLAVA("\"1.png\"", TURN("human", "q") "," TURN("gpt", "<image>")),
         "only the user shows images"},
        {LLAVA("\"../1.png\"", TURN("human", "<image>") "," TURN("gpt", "a")),
         "lies outside the folder"},
        {LLAVA("\"http://h/1.png\"", TURN("human", "<image>") "," TURN("gpt", "a")),
         "is not a file name"},
        {LLAVA("7", TURN("human", "<image>") "," TURN("gpt", "a")), "found an integer"},
        {LLAVA("[]", TURN("tool", "q")), "role \"tool\""},
        {LLAVA("[]", TURN("human", "<video>")), "1 videos (<video>), but 0 are listed"},
        {LLAVA("[]", ""), "an empty list"},
        {LLAVA("[]", "7"), "expected an object"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "of a message, found none"},
        {"{\"messages\": [{\"content\": \"x\"}]}", "neither \"role\""},
        {"{\"text\": \"x\"}", "none of these"},
        {"[1]", "expected an object, found an array"},
        {"{\"id\": 1,}", "column 11"},
        {"{\"id\": \"\xff\"}", "UTF8"},
        {"{\"id\": \"\\ud83d\\u0041\"}", "surrogate"},
    };
    enum { BAD = sizeof cases / sizeof *cases };
    char text[BAD * 256] = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"good\"}]}\n\n";
    fixture setup;
    for (int k = 0; k < BAD; k++) {
        strcat(text, cases[k].line);
        strcat(text, "\n");
    }
    open_text(&setup, "a.jsonl", text);
    assert_ok(dataset_open(&setup.options, &setup.set));
    assert_int_equal(setup.set->adapter->samples(setup.set), BAD + 1);
    assert_null(fetch_sample(&setup, 0).cause);
    for (int k = 0; k < BAD; k++) {
        char place[32];
        const char *cause = fetch_sample(&setup, k + 1).cause;
        snprintf(place, sizeof place, "a.jsonl:%d: ", k + 3);
        assert_non_null(cause);
        if (!strstr(cause, cases[k].cause) || strncmp(cause, place, strlen(place)) != 0)
            fail_msg("case %d: \"%s\" does not say \"%s%s\"", k, cause, place, cases[k].cause);
    }
    close_fixture(&setup);
}

static void test_files__found_by_split_and_refused_by_name(void **state)
{
    (void)state;
    fixture setup;
    const char *good = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"good\"}]}";
    open_text(&setup, "mine-validation.jsonl", good);
    setup.options.data_path = setup.folder;
    assert_fails(ST_NO_INPUT, dataset_open(&setup.options, &setup.set),
                 "it holds: mine-validation.jsonl");
    setup.options.data_split = "val";
    assert_ok(dataset_open(&setup.options, &setup.set));
    assert_int_equal(setup.set->adapter->samples(setup.set), 1);
    close_fixture(&setup);
    open_text(&setup, "a.json", "[{\"messages\": []},\n ]");
    assert_fails(ST_BAD_INPUT, dataset_open(&setup.options, &setup.set), "a.json:2: ");
    close_fixture(&setup);
    open_text(&setup, "a.json", "");
    assert_fails(ST_BAD_INPUT, dataset_open(&setup.options, &setup.set), "no record");
    close_fixture(&setup);
}

static void test_identity__depends_on_texts_and_what_is_trained(void **state)
{
    (void)state;
    hash128 seen[4];
    static const char *const text[] = {"good", "good", "bad", "good"};
    for (int k = 0; k < 4; k++) {
        fixture setup;
        char line[128];
        snprintf(line, sizeof line, "{\"question\": \"q\", \"answer\": \"%s\"}", text[k]);
        open_text(&setup, "a.jsonl", line);
        setup.options.data_loss_on = k == 3 ? LOSS_ON_LAST : LOSS_ON_ALL;
        assert_ok(dataset_open(&setup.options, &setup.set));
        seen[k] = setup.set->adapter->identity(setup.set);
        close_fixture(&setup);
    }
    assert_true(hash_equal(seen[0], seen[1]));
    assert_false(hash_equal(seen[0], seen[2]));
    assert_false(hash_equal(seen[0], seen[3]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_array__marks_become_images),
        cmocka_unit_test(test_rules__last_turn_and_trim),
        cmocka_unit_test(test_stages__weights_of_parts_turns_and_options),
        cmocka_unit_test(test_videos__may_stand_beside_pictures),
        cmocka_unit_test(test_stat__is_zero_for_what_no_worker_can_read),
        cmocka_unit_test(test_names__absolute_paths_below_the_root_are_accepted),
        cmocka_unit_test(test_nulls__count_as_absent_members),
        cmocka_unit_test(test_bad_records__keep_their_place_and_say_why),
        cmocka_unit_test(test_files__found_by_split_and_refused_by_name),
        cmocka_unit_test(test_identity__depends_on_texts_and_what_is_trained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
