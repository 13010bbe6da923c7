/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of text.h: ids and labels of conversations (trainer/model/equations.md, "Chat template and
 * labels"). The worked examples use the published tokenizer, if the shared data is there; every
 * rule is tested with the tiny golden one. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "prepd/sample/clip.h"
#include "prepd/sample/text.h"
#include "proto/row/batch.h"

enum { MAX_TURNS = 8, MAX_PARTS = 8 };

typedef struct fixture {
    tokenizer *vocabulary;
    tokenizer_scratch *scratch;
    chat_ids ids;
    conf options;
    arena memory;
    sample smp;
    turn turns[MAX_TURNS];
    part parts[MAX_TURNS][MAX_PARTS];
    int32_t images[MAX_PARTS];
    chat_visual visuals[MAX_PARTS];
    chat_text out;
} fixture;

static void fixture_open(fixture *setup, const char *folder)
{
    memset(setup, 0, sizeof *setup);
    assert_ok(tokenizer_load(folder, &setup->vocabulary));
    assert_ok(tokenizer_scratch_new(setup->vocabulary, &setup->scratch));
    assert_ok(chat_ids_find(setup->vocabulary, &setup->ids));
    arena_init(&setup->memory, 0);
    setup->options.data_system = "";
    setup->smp = (sample){.name = "question 7", .turns = setup->turns, .images = setup->images};
}

static void fixture_close(fixture *setup)
{
    arena_done(&setup->memory);
    tokenizer_scratch_free(&setup->scratch);
    tokenizer_free(&setup->vocabulary);
}

static void open_tiny(fixture *setup)
{
    const char *source = getenv("TESSERA_SOURCE");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/tokenizer/pairs", source ? source : ".");
    fixture_open(setup, path);
}

static bool open_published(fixture *setup)
{
    char *folder = harness_shared("data/tokenizer");
    if (!folder)
        return false;
    fixture_open(setup, folder);
    free(folder);
    return true;
}

/* Removes all turns and images of the sample. */
static void no_turns(fixture *setup)
{
    setup->smp.n_turns = setup->smp.n_images = 0;
}

/* Adds a turn of these parts, of which NULL is the end. IMAGE_PART(n) is the n-th image. */
#define IMAGE_PART(n) ((const char *)(uintptr_t)(1 + (n)))
static void add_turn(fixture *setup, int role, const char *const *parts)
{
    int at = setup->smp.n_turns++;
    turn *said = &setup->turns[at];
    *said = (turn){.role = role, .trained = role == ROLE_ASSISTANT, .parts = setup->parts[at]};
    for (; *parts; parts++) {
        uintptr_t count = (uintptr_t)*parts;
        bool image = count <= MAX_PARTS;
        setup->parts[at][said->n_parts++] =
            image ? (part){.image = (int32_t)count - 1}
                  : (part){.text = *parts, .text_bytes = (int64_t)strlen(*parts), .image = -1};
        if (image && setup->smp.n_images < (int32_t)count)
            setup->smp.n_images = (int32_t)count;
    }
}

#define TURN(f, role, ...) add_turn(f, role, (const char *const[]){__VA_ARGS__, NULL})

static status encode_sample(fixture *setup)
{
    return chat_encode(setup->vocabulary, setup->scratch, &setup->ids, &setup->options, &setup->smp,
                       setup->visuals, &setup->memory, &setup->out);
}

/* The encoded sample must decode to want, image tokens included, and its trained tokens to
 * want_trained. */
static void check_text(fixture *setup, const char *want, const char *want_trained)
{
    char *text;
    size_t size, count = 0;
    assert_ok(encode_sample(setup));
    assert_ok(tokenizer_decode(setup->vocabulary, setup->out.ids, (size_t)setup->out.count, false,
                               &text, &size));
    assert_string_equal(text, want);
    free(text);
    int32_t trained[4096];
    for (int64_t i = 0; i < setup->out.count; i++) {
        assert_true(setup->out.labels[i] == NO_LABEL || setup->out.labels[i] == setup->out.ids[i]);
        if (setup->out.labels[i] != NO_LABEL)
            trained[count++] = setup->out.labels[i];
    }
    assert_int_equal(count, setup->out.n_targets);
    assert_int_equal(setup->out.labels[0], NO_LABEL);
    assert_ok(tokenizer_decode(setup->vocabulary, trained, count, false, &text, &size));
    assert_string_equal(text, want_trained);
    free(text);
}

static void test_chat__example_a(void **state)
{
    (void)state;
    fixture setup;
    if (!open_published(&setup))
        HARNESS_SKIP("no shared tokenizer");
    static const int32_t before[] = {151644, 872, 198, 151652};
    static const int32_t after[] = {151653, 74785, 419, 2168, 13,   151645, 198,
                                    151644, 77091, 198, 9707, 1879, 151645, 198};
    TURN(&setup, ROLE_USER, IMAGE_PART(0), "Describe this image.");
    TURN(&setup, ROLE_ASSISTANT, "Hello world");
    setup.visuals[0].tokens = 300;
    for (int newline = 0; newline < 2; newline++) {
        setup.options.data_label_newline = newline;
        assert_ok(encode_sample(&setup));
        assert_int_equal(setup.out.count, 318);
        assert_memory_equal(setup.out.ids, before, sizeof before);
        for (int i = 4; i < 304; i++)
            assert_int_equal(setup.out.ids[i], 151655);
        assert_memory_equal(setup.out.ids + 304, after, sizeof after);
        assert_int_equal(setup.out.run_at[0], 4);
        for (int i = 0; i < 318; i++) {
            bool trained = i >= 314 && i < 317 + newline;
            assert_int_equal(setup.out.labels[i], trained ? setup.out.ids[i] : NO_LABEL);
        }
        assert_int_equal(setup.out.n_targets, 3 + newline);
    }
    setup.visuals[0].tokens = 0; /* 0: only the length is measured */
    assert_ok(encode_sample(&setup));
    assert_int_equal(setup.out.count, 18);
    assert_int_equal(setup.out.run_at[0], 4);
    fixture_close(&setup);
}

/* Each pair of frames of a clip has its time before it. The clip stands between two texts here. */
static void test_chat__example_c(void **state)
{
    static const double seconds[] = {0.333333, 1.625};
    (void)state;
    fixture setup;
    open_tiny(&setup);
    TURN(&setup, ROLE_USER, IMAGE_PART(0), "Look: ", IMAGE_PART(1), "What happens?");
    TURN(&setup, ROLE_ASSISTANT, "Nothing.");
    setup.visuals[0].tokens = 1;
    setup.visuals[1] = (chat_visual){4, seconds, 2};
#define PADS "<|vision_start|><|video_pad|><|video_pad|><|video_pad|><|video_pad|><|vision_end|>"
    check_text(&setup,
               "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Look: "
               "<0.3 seconds>" PADS "<1.6 seconds>" PADS "What happens?<|im_end|>\n"
               "<|im_start|>assistant\nNothing.<|im_end|>\n",
               "Nothing.<|im_end|>");
    assert_int_equal(setup.out.n_runs, 3);
    assert_int_equal(setup.out.ids[setup.out.run_at[0]], setup.ids.image_pad);
    for (int k = 1; k < 3; k++)
        for (int i = 0; i < 4; i++)
            assert_int_equal(setup.out.ids[setup.out.run_at[k] + i], setup.ids.video_pad);
    const int64_t whole = setup.out.count;
    setup.visuals[0].tokens = setup.visuals[1].tokens = 0; /* 0: only the length is measured */
    assert_ok(encode_sample(&setup));
    assert_int_equal(setup.out.count, whole - 9);
    setup.smp.n_images = 1; /* a clip that the sample does not have */
    assert_fails(ST_BAD_INPUT, encode_sample(&setup), "image 2 of 1");
    setup.smp.n_images = 2;
    setup.turns[0].parts[1] = (part){"<|video_pad|>", 13, -1};
    assert_fails(ST_BAD_INPUT, encode_sample(&setup),
                 "contains <|video_pad|>, which stands for pictures");
    fixture_close(&setup);
}

static int64_t read_whole(const json_value *list, size_t index)
{
    return json_int(json_item(list, index), -1);
}

/* Reads a part from versions.json: a text, a picture or a clip. */
static part read_part(fixture *setup, const json_value *value)
{
    const json_value *size = json_find(value, "picture"), *frames = json_find(value, "frames");
    const int32_t k = setup->smp.n_images;
    if (json_typeof(value) == JSON_TEXT)
        return (part){json_text(value, ""), (int64_t)json_text_size(value), -1};
    setup->smp.n_images++;
    if (!frames) {
        setup->visuals[k] =
            (chat_visual){read_whole(size, 0) * read_whole(size, 1) / 1024, NULL, 0};
        return (part){.image = k};
    }
    const double fps = json_real(json_find(value, "fps"), 0);
    const json_value *frame = json_find(value, "size");
    int64_t count, *index;
    fit_grid grid;
    double *seconds;
    assert_ok(
        clip_choose(json_int(frames, 0), fps, &clip_published, &setup->memory, &index, &count));
    assert_ok(clip_fit(count, read_whole(frame, 0), read_whole(frame, 1), &clip_published, &grid));
    assert_ok(arena_calloc(&setup->memory, (size_t)count, sizeof *seconds, (void **)&seconds));
    for (int64_t pair = 0; pair < grid.pairs; pair++)
        seconds[pair] = clip_seconds(index, count, pair, fps);
    setup->visuals[k] = (chat_visual){(int64_t)grid.rows * grid.columns / 4, seconds, grid.pairs};
    return (part){.image = k};
}

/* The text around a clip is that of the version of the reference that video.prompt names
 * (tests/golden/make_versions.py). */
static void test_chat__clips_as_in_each_version(void **state)
{
    static const struct {
        const char *version;
        int prompt;
    } rows[] = {
        {"4.57.3", VIDEO_PROMPT_4_57}, {"5.2.0", VIDEO_PROMPT_4_57}, {"5.23.0", VIDEO_PROMPT_5_23}};
    const char *source = getenv("TESSERA_SOURCE");
    char path[4096];
    json_value *file;
    fixture setup;
    (void)state;
    open_tiny(&setup);
    snprintf(path, sizeof path, "%s/tests/golden/versions.json", source ? source : ".");
    assert_ok(json_load(path, &file));
    const json_value *clips = json_find(json_find(file, "shared"), "clips");
    assert_true(json_count(clips) >= 4);
    for (size_t generation = 0; generation < sizeof rows / sizeof *rows; generation++) {
        const json_value *made = json_find(json_find(file, "versions"), rows[generation].version);
        setup.options.video_prompt = rows[generation].prompt;
        for (size_t i = 0; i < json_count(clips); i++) {
            const json_value *parts = json_item(clips, i);
            const json_value *want = json_item(json_find(made, "prompts"), i);
            no_turns(&setup);
            TURN(&setup, ROLE_USER, "");
            TURN(&setup, ROLE_ASSISTANT, "yes");
            setup.turns[0].n_parts = (int32_t)json_count(parts);
            for (size_t k = 0; k < json_count(parts); k++)
                setup.parts[0][k] = read_part(&setup, json_item(parts, k));
            assert_ok(encode_sample(&setup));
            assert_true(json_count(want) > 20 && setup.out.count > (int64_t)json_count(want));
            for (size_t k = 0; k < json_count(want); k++)
                assert_int_equal(setup.out.ids[k], json_int(json_item(want, k), -1));
            assert_int_equal(setup.out.ids[json_count(want)],
                             setup.ids.im_start); /* the answer begins */
        }
    }
    /* The tokens around a clip may stand nowhere else. */
    setup.parts[0][setup.turns[0].n_parts - 1] = (part){"<|vision_end|>", 14, -1};
    assert_fails(ST_BAD_INPUT, encode_sample(&setup),
                 "contains <|vision_end|>, which stands for pictures");
    json_free(&file);
    fixture_close(&setup);
}

static void test_chat__example_b(void **state)
{
    (void)state;
    fixture setup;
    open_tiny(&setup);
    TURN(&setup, ROLE_SYSTEM, "You are a helpful", " assistant.");
    TURN(&setup, ROLE_USER, IMAGE_PART(0), IMAGE_PART(1), "What differs?");
    TURN(&setup, ROLE_ASSISTANT, "The second is darker.");
    TURN(&setup, ROLE_USER, "Sure?");
    TURN(&setup, ROLE_ASSISTANT, "Yes.");
    setup.visuals[0].tokens = 1;
    setup.visuals[1].tokens = 2;
    check_text(&setup,
               "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
               "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>"
               "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>What differs?<|im_end|>\n"
               "<|im_start|>assistant\nThe second is darker.<|im_end|>\n"
               "<|im_start|>user\nSure?<|im_end|>\n"
               "<|im_start|>assistant\nYes.<|im_end|>\n",
               "The second is darker.<|im_end|>Yes.<|im_end|>");
    assert_int_equal(setup.out.ids[setup.out.run_at[0]], setup.ids.image_pad);
    assert_int_equal(setup.out.run_at[1], setup.out.run_at[0] + 3);
    /* Only the last answer is trained. */
    setup.turns[2].trained = false;
    assert_ok(encode_sample(&setup));
    assert_int_equal(setup.out.labels[setup.out.count - 2], setup.ids.im_end);
    assert_int_equal(setup.out.labels[setup.out.count - 1], NO_LABEL);
    int64_t targets = setup.out.n_targets;
    setup.turns[2].trained = true;
    assert_ok(encode_sample(&setup));
    assert_true(setup.out.n_targets > targets);
    fixture_close(&setup);
}

/* The token "\n\n" begins before the answer and ends in it. It is not trained, although the answer
 * is. */
static void test_chat__answer_that_begins_with_a_newline(void **state)
{
    (void)state;
    fixture setup;
    if (!open_published(&setup))
        HARNESS_SKIP("no shared tokenizer");
    static const int32_t ids[] = {151644, 872,   198, 13048, 151645, 198,
                                  151644, 77091, 271, 9707,  151645, 198};
    TURN(&setup, ROLE_USER, "Hi");
    TURN(&setup, ROLE_ASSISTANT, "\nHello");
    assert_ok(encode_sample(&setup));
    assert_int_equal(setup.out.count, sizeof ids / sizeof *ids);
    assert_memory_equal(setup.out.ids, ids, sizeof ids);
    for (int i = 0; i < setup.out.count; i++)
        assert_int_equal(setup.out.labels[i], i == 9 || i == 10 ? ids[i] : NO_LABEL);
    fixture_close(&setup);
}

/* An answer of these texts with these weights must train exactly these tokens, each with its
 * weight. */
static void check_stages(fixture *setup, const char *const *texts, const float *weights,
                         const char *const *tokens, const float *want)
{
    no_turns(setup);
    TURN(setup, ROLE_USER, "What?");
    add_turn(setup, ROLE_ASSISTANT, texts);
    setup->turns[1].weights = weights;
    assert_ok(encode_sample(setup));
    for (int64_t i = 0; i < setup->out.count; i++) {
        char *text;
        size_t size;
        if (setup->out.labels[i] == NO_LABEL)
            continue;
        assert_non_null(*tokens);
        assert_ok(tokenizer_decode(setup->vocabulary, setup->out.ids + i, 1, false, &text, &size));
        assert_string_equal(text, *tokens);
        free(text);
        assert_true((setup->out.weights ? setup->out.weights[i] : 1.0F) == *want);
        tokens++;
        want++;
    }
    assert_null(*tokens);
    setup->turns[1].weights = NULL;
}

#define TEXTS(...)   ((const char *const[]){__VA_ARGS__, NULL})
#define WEIGHTS(...) ((const float[]){__VA_ARGS__})

/* The first case is the example of prepd/dataset. Without the rule, the token " Two" would belong
 * to the text before, whose space it begins with, and the second stage would lose its first
 * word. */
static void test_chat__a_token_across_texts_belongs_to_the_larger_share(void **state)
{
    (void)state;
    fixture setup;
    if (!open_published(&setup))
        HARNESS_SKIP("no shared tokenizer");
    check_stages(&setup, TEXTS("I see two. ", "Two."), WEIGHTS(0, 1),
                 TEXTS(" Two", ".", "<|im_end|>"), WEIGHTS(1, 1, 1));
    check_stages(&setup, TEXTS("I see two. ", "Two."), WEIGHTS(1, 0),
                 TEXTS("I", " see", " two", "."), WEIGHTS(1, 1, 1, 1));
    check_stages(&setup, TEXTS("I see two. ", "Two."), WEIGHTS(0.25F, 2),
                 TEXTS("I", " see", " two", ".", " Two", ".", "<|im_end|>"),
                 WEIGHTS(0.25F, 0.25F, 0.25F, 0.25F, 2, 2, 2));
    /* The token is mostly of the earlier text; at a tie it belongs to the later one, also with
     * three and four texts. */
    check_stages(&setup, TEXTS("pict", "ure"), WEIGHTS(0.5F, 2), TEXTS("picture", "<|im_end|>"),
                 WEIGHTS(0.5F, 2));
    check_stages(&setup, TEXTS("ta", "ke"), WEIGHTS(0.5F, 2), TEXTS("take", "<|im_end|>"),
                 WEIGHTS(2, 2));
    check_stages(&setup, TEXTS("a", "ns", "we"), WEIGHTS(0.5F, 2, 4),
                 TEXTS("ans", "we", "<|im_end|>"), WEIGHTS(2, 4, 4));
    check_stages(&setup, TEXTS("p", "ic", "tu", "re"), WEIGHTS(0.5F, 2, 4, 8),
                 TEXTS("picture", "<|im_end|>"), WEIGHTS(8, 8));
    /* The share is counted in characters and not in bytes: one of three bytes weighs as much as one
     * of one byte. */
    check_stages(&setup, TEXTS("\xE3\x80\x82", "\n"), WEIGHTS(0.5F, 2),
                 TEXTS("\xE3\x80\x82\n", "<|im_end|>"), WEIGHTS(2, 2));
    fixture_close(&setup);
}

static void test_chat__the_word_assistant_in_a_question_is_not_trained(void **state)
{
    (void)state;
    fixture setup;
    open_tiny(&setup);
    TURN(&setup, ROLE_USER, "assistant\nassistant");
    TURN(&setup, ROLE_ASSISTANT, "user\nno");
    check_text(&setup,
               "<|im_start|>user\nassistant\nassistant<|im_end|>\n"
               "<|im_start|>assistant\nuser\nno<|im_end|>\n",
               "user\nno<|im_end|>");
    setup.options.data_label_newline = true;
    check_text(&setup,
               "<|im_start|>user\nassistant\nassistant<|im_end|>\n"
               "<|im_start|>assistant\nuser\nno<|im_end|>\n",
               "user\nno<|im_end|>\n");
    fixture_close(&setup);
}

static void test_chat__a_system_turn_comes_first_or_not_at_all(void **state)
{
    (void)state;
    fixture setup;
    open_tiny(&setup);
    TURN(&setup, ROLE_USER, "a");
    TURN(&setup, ROLE_SYSTEM, "late");
    TURN(&setup, ROLE_ASSISTANT, "b");
    static const char plain[] =
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n";
    char with[256];
    check_text(&setup, plain, "b<|im_end|>");
    setup.options.data_system = "Be brief.";
    snprintf(with, sizeof with, "<|im_start|>system\nBe brief.<|im_end|>\n%s", plain);
    check_text(&setup, with, "b<|im_end|>");
    /* A system turn of the sample takes the place of the option. */
    no_turns(&setup);
    TURN(&setup, ROLE_SYSTEM, "Own.");
    TURN(&setup, ROLE_USER, "a");
    TURN(&setup, ROLE_ASSISTANT, "b");
    snprintf(with, sizeof with, "<|im_start|>system\nOwn.<|im_end|>\n%s", plain);
    check_text(&setup, with, "b<|im_end|>");
    fixture_close(&setup);
}

/* NFC joins accents, which moves offsets. The labels must stay at the same tokens. */
static void test_chat__labels_survive_normalisation(void **state)
{
    (void)state;
    fixture setup;
    open_tiny(&setup);
    TURN(&setup, ROLE_USER,
         "e\xCC\x81"
         "e\xCC\x81"
         "e\xCC\x81 \xFF?");
    TURN(&setup, ROLE_ASSISTANT, "e\xCC\x81 yes");
    check_text(&setup,
               "<|im_start|>user\n\xC3\xA9\xC3\xA9\xC3\xA9 \xEF\xBF\xBD?<|im_end|>\n"
               "<|im_start|>assistant\n\xC3\xA9 yes<|im_end|>\n",
               "\xC3\xA9 yes<|im_end|>");
    fixture_close(&setup);
}

static void test_chat__visual_control_tokens_in_text_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"<|image_pad|>", "<|video_pad|>", "<|vision_start|>",
                                      "<|vision_end|>"};
    fixture setup;
    open_tiny(&setup);
    setup.visuals[0].tokens = 1;
    for (int i = 0; i < 4; i++)
        for (int where = 0; where < 3; where++) {
            no_turns(&setup);
            TURN(&setup, ROLE_USER, where == 0 ? bad[i] : "a", IMAGE_PART(0),
                 where == 1 ? bad[i] : "b");
            TURN(&setup, ROLE_ASSISTANT, where == 2 ? bad[i] : "c");
            assert_fails(ST_BAD_INPUT, encode_sample(&setup), bad[i]);
            assert_non_null(strstr(status_text(), "question 7"));
        }
    no_turns(&setup); /* a control token may not be made of two parts either */
    TURN(&setup, ROLE_USER, "<|image", "_pad|>");
    TURN(&setup, ROLE_ASSISTANT, "c");
    assert_fails(ST_BAD_INPUT, encode_sample(&setup), "<|image_pad|>");
    fixture_close(&setup);
}

static void test_chat__refusals_name_the_sample(void **state)
{
    (void)state;
    fixture setup;
    open_tiny(&setup);
    TURN(&setup, ROLE_USER, "a");
    assert_fails(ST_BAD_INPUT, encode_sample(&setup), "question 7: it has no token to train");
    TURN(&setup, ROLE_ASSISTANT, "b");
    assert_ok(encode_sample(&setup));
    setup.turns[1].trained = false;
    assert_fails(ST_BAD_INPUT, encode_sample(&setup), "no token to train");
    no_turns(&setup);
    TURN(&setup, ROLE_USER, IMAGE_PART(1), IMAGE_PART(0));
    TURN(&setup, ROLE_ASSISTANT, "b");
    assert_fails(ST_BAD_INPUT, encode_sample(&setup), "image 2 of 2 is shown as number 1");
    no_turns(&setup); /* the template shows no pictures in an answer */
    TURN(&setup, ROLE_USER, "a");
    TURN(&setup, ROLE_ASSISTANT, "b", IMAGE_PART(0));
    assert_fails(ST_BAD_INPUT, encode_sample(&setup), "0 of its 1 images");
    fixture_close(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat__example_a),
        cmocka_unit_test(test_chat__example_b),
        cmocka_unit_test(test_chat__example_c),
        cmocka_unit_test(test_chat__clips_as_in_each_version),
        cmocka_unit_test(test_chat__answer_that_begins_with_a_newline),
        cmocka_unit_test(test_chat__a_token_across_texts_belongs_to_the_larger_share),
        cmocka_unit_test(test_chat__the_word_assistant_in_a_question_is_not_trained),
        cmocka_unit_test(test_chat__a_system_turn_comes_first_or_not_at_all),
        cmocka_unit_test(test_chat__labels_survive_normalisation),
        cmocka_unit_test(test_chat__visual_control_tokens_in_text_are_refused),
        cmocka_unit_test(test_chat__refusals_name_the_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
