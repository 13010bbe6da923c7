/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of prepd synth: generated data is exactly balanced and a function of the seed, never
 * replaces files that it did not make, and comes with a model folder whose parts agree. Letters: x,
 * y a place in the picture. */
#include "tests/harness.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/json/json.h"
#include "common/tokenizer/tokenizer.h"
#include "prepd/synth/synth.h"

/* How often a question occurs with an answer. */
typedef struct tally {
    const char *text, *answer;
    int64_t count;
} tally;
enum { MAX_TALLIES = 64 };

static int count_split(uint64_t seed, const char *split, uint64_t count, tally tallies[MAX_TALLIES])
{
    int n_tallies = 0;
    for (uint64_t i = 0; i < count; i++) {
        scene picture;
        scene_question questions[MAX_QUESTIONS];
        scene_draw(seed, split, SIZES_SMALL, count, i, &picture);
        int n_questions = scene_questions(&picture, questions);
        for (int k = 0; k < n_questions; k++) {
            int at = 0;
            while (at < n_tallies && (strcmp(tallies[at].text, questions[k].text) != 0 ||
                                      strcmp(tallies[at].answer, questions[k].answer) != 0))
                at++;
            assert_true(at < MAX_TALLIES);
            if (at == n_tallies)
                tallies[n_tallies++] = (tally){questions[k].text, questions[k].answer, 0};
            tallies[at].count++;
        }
    }
    return n_tallies;
}

static void test_questions__have_each_answer_equally_often(void **state)
{
    (void)state;
    const uint64_t sizes[] = {60, 64, 336, 1000, 1001};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        tally tallies[MAX_TALLIES];
        int count = count_split(harness_seed() + k, k % 2 ? "val" : "train", sizes[k], tallies);
        assert_int_equal(count, N_COLOURS + N_FORMS + MAX_SHAPES + 2 + 2);
        for (int one = 0; one < count; one++)
            for (int other = 0; other < count; other++)
                if (strcmp(tallies[one].text, tallies[other].text) == 0)
                    assert_true(llabs(tallies[one].count - tallies[other].count) <= 1);
    }
}

static void test_scene__shapes_lie_inside_and_apart(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 500; i++) {
        scene picture;
        scene_draw(harness_seed(), "train", i % 2 ? SIZES_COCO : SIZES_SMALL, 500, i, &picture);
        float side = (float)(picture.width < picture.height ? picture.width : picture.height);
        for (int one = 0; one < picture.n_shapes; one++) {
            const scene_shape *shape = &picture.shapes[one];
            float x = shape->centre_x * (float)picture.width,
                  y = shape->centre_y * (float)picture.height;
            float reach = 0.84f * shape->radius; /* the narrowest shape reaches this far */
            assert_true(x - reach >= -2 && x + reach <= (float)picture.width + 2);
            assert_true(y - reach >= -2 && y + reach <= (float)picture.height + 2);
            for (int other = 0; other < one; other++) {
                float dx =
                    fabsf(shape->centre_x - picture.shapes[other].centre_x) * (float)picture.width;
                float dy =
                    fabsf(shape->centre_y - picture.shapes[other].centre_y) * (float)picture.height;
                assert_true(dx > 1.9f * reach || dy > 1.9f * reach);
            }
        }
        if (picture.single) {
            assert_true(2 * 0.84f * picture.shapes[0].radius >= 0.4f * side);
            assert_int_equal(picture.shapes[0].centre_x > 0.5f, picture.right);
            assert_int_equal(picture.shapes[0].centre_y > 0.5f, picture.bottom);
        }
    }
}

static void hash_of(const char *folder, const char *name, hash128 *out)
{
    char path[FILES_PATH_MAX];
    assert_ok(files_path(path, folder, "%s", name));
    assert_ok(hash_file(path, out));
}

static void test_synth__same_seed_same_bytes(void **state)
{
    (void)state;
    static const char *const names[] = {
        "v2_OpenEnded_mscoco_train2014_questions.json",
        "v2_OpenEnded_mscoco_val2014_questions.json",
        "v2_mscoco_train2014_annotations.json",
        "v2_mscoco_val2014_annotations.json",
        "images/train2014/COCO_train2014_000000000001.jpg",
        "images/val2014/COCO_val2014_000000000012.jpg",
        "model/tokenizer.json",
        "model/config.json",
    };
    char *root = harness_temp(), one[FILES_PATH_MAX], other[FILES_PATH_MAX], third[FILES_PATH_MAX];
    assert_ok(files_path(one, root, "a"));
    assert_ok(files_path(other, root, "deep/er/b"));
    assert_ok(files_path(third, root, "c"));
    assert_ok(synth_write(&(synth_options){one, 12, 5, SIZES_SMALL}));
    assert_ok(synth_write(&(synth_options){other, 40, 9, SIZES_SMALL}));
    assert_ok(synth_write(&(synth_options){other, 12, 5, SIZES_SMALL})); /* over its own files */
    assert_ok(synth_write(&(synth_options){third, 12, 6, SIZES_SMALL}));
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        hash128 first, second, digest;
        hash_of(one, names[k], &first);
        hash_of(other, names[k], &second);
        hash_of(third, names[k], &digest);
        if (!hash_equal(first, second))
            fail_msg("%s differs between two runs of one seed", names[k]);
        bool model = strncmp(names[k], "model/", 6) == 0;
        /* of 12 images they may be the same */
        bool questions = strstr(names[k], "questions") != NULL;
        if (!model && !questions && hash_equal(first, digest))
            fail_msg("%s is the same for two seeds", names[k]);
    }
    /* Pictures of the earlier, larger run are removed. */
    char path[FILES_PATH_MAX];
    assert_ok(files_path(path, other, "images/val2014/COCO_val2014_000000000040.jpg"));
    assert_int_equal(access(path, F_OK), -1);
    harness_remove(&root);
}

static void test_synth__foreign_folder_is_refused(void **state)
{
    (void)state;
    char *root = harness_temp(), path[FILES_PATH_MAX];
    assert_ok(files_path(path, root, "letter.txt"));
    assert_ok(files_write(path, "dear", 4));
    assert_fails(ST_CANT_CREATE, synth_write(&(synth_options){root, 4, 1, SIZES_SMALL}),
                 "was not made by prepd synth");
    assert_fails(ST_CANT_CREATE, synth_write(&(synth_options){path, 4, 1, SIZES_SMALL}), path);
    harness_remove(&root);
}

static void test_verb__names_what_is_wrong(void **state)
{
    (void)state;
    char verb[] = "synth", out[] = "--out=/nowhere", images[] = "--images", seed[] = "--seed=1";
    char many[] = "1x", sizes[] = "--sizes=huge", unknown[] = "--size=1";
    char *lacks[] = {verb, out, images, NULL};
    assert_fails(ST_USAGE, verb_synth(3, lacks), "--images needs a value");
    char *number[] = {verb, out, images, many, seed, NULL};
    assert_fails(ST_USAGE, verb_synth(5, number), "--images 1x");
    char one[] = "--images=1", minus[] = "--seed=-1", two[] = "--images=2";
    char *few[] = {verb, out, one, seed, NULL};
    assert_fails(ST_USAGE, verb_synth(4, few), "from 2 to 1000000");
    char *below[] = {verb, out, two, minus, NULL};
    assert_fails(ST_USAGE, verb_synth(4, below),
                 "--seed -1: expected a whole number of at least 0");
    char *size[] = {verb, out, two, seed, sizes, NULL};
    assert_fails(ST_USAGE, verb_synth(5, size), "small or coco");
    char *option[] = {verb, unknown, NULL};
    assert_fails(ST_USAGE, verb_synth(2, option), "unexpected \"--size=1\"");
    char *no_seed[] = {verb, out, NULL};
    assert_fails(ST_USAGE, verb_synth(2, no_seed), "needs --out DIR");
}

static void test_held_out__is_a_tenth_at_least_64_at_most_half(void **state)
{
    (void)state;
    assert_int_equal(synth_held_out(2), 1);
    assert_int_equal(synth_held_out(100), 50);
    assert_int_equal(synth_held_out(400), 64);
    assert_int_equal(synth_held_out(5000), 500);
}

/* Frequent words of the training texts must become single tokens. */
static void test_bpe__learns_frequent_words(void **state)
{
    (void)state;
    bpe *vocabulary = malloc(sizeof *vocabulary);
    bpe_text texts[] = {{"banana bandana banana", 3}, {"it's 42", 1}};
    assert_non_null(vocabulary);
    assert_ok(bpe_train(texts, 2, 100, vocabulary));
    bool banana = false, space_banana = false;
    for (int i = 0; i < vocabulary->n_tokens; i++) {
        banana |= vocabulary->size[i] == 6 && memcmp(vocabulary->bytes[i], "banana", 6) == 0;
        space_banana |= vocabulary->size[i] == 7 && memcmp(vocabulary->bytes[i], " banana", 7) == 0;
        /* Text is split into single digits, so digits never merge. */
        assert_false(vocabulary->size[i] == 2 && memcmp(vocabulary->bytes[i], "42", 2) == 0);
    }
    assert_true(banana && space_banana);
    assert_int_equal(vocabulary->n_tokens, BPE_BYTES + vocabulary->n_merges);
    assert_int_equal(bpe_added_id(vocabulary, "<|endoftext|>"), vocabulary->n_tokens);
    assert_int_equal(bpe_added_id(vocabulary, "</think>"), bpe_size(vocabulary) - 1);
    assert_int_equal(bpe_added_id(vocabulary, "no such"), -1);
    free(vocabulary);
}

/* Read as the programs read it, the model folder has a token for every answer, also after a
 * newline, and the special ids of config.json are those of tokenizer.json. */
static void test_model_folder__tokenizer_agrees(void **state)
{
    (void)state;
    char *root = harness_temp(), model[FILES_PATH_MAX], config[FILES_PATH_MAX];
    tokenizer *vocabulary;
    tokenizer_scratch *scratch;
    token_list ids = {0};
    json_value *value;
    assert_ok(files_path(model, root, "model"));
    assert_ok(files_path(config, root, "model/config.json"));
    assert_ok(synth_write(&(synth_options){root, 2, 1, SIZES_SMALL}));
    assert_ok(tokenizer_load(model, &vocabulary));
    assert_ok(tokenizer_scratch_new(vocabulary, &scratch));
    assert_ok(json_load(config, &value));
    for (int i = 0; scene_text(i); i++) {
        char *back;
        size_t size;
        const char *text = scene_text(i);
        ids.count = 0;
        assert_ok(tokenizer_encode(vocabulary, scratch, text, strlen(text), &ids));
        if (!strchr(text, ' ') && ids.count != 1)
            fail_msg("\"%s\" is %zu tokens", text, ids.count);
        assert_ok(tokenizer_decode(vocabulary, ids.id, ids.count, false, &back, &size));
        assert_string_equal(back, text);
        free(back);
    }
    static const char *const special[][2] = {{"image_token_id", "<|image_pad|>"},
                                             {"video_token_id", "<|video_pad|>"},
                                             {"vision_start_token_id", "<|vision_start|>"},
                                             {"vision_end_token_id", "<|vision_end|>"}};
    for (size_t k = 0; k < sizeof special / sizeof *special; k++)
        assert_int_equal(json_int(json_find(value, special[k][0]), -1),
                         tokenizer_added(vocabulary, special[k][1]));
    const json_value *text = json_find(value, "text_config");
    int64_t rows = json_int(json_find(text, "vocab_size"), 0);
    assert_true(rows >= tokenizer_size(vocabulary) && rows % 64 == 0);
    assert_int_equal(json_int(json_find(text, "eos_token_id"), -1),
                     tokenizer_added(vocabulary, "<|im_end|>"));
    json_free(&value);
    token_list_done(&ids);
    tokenizer_scratch_free(&scratch);
    tokenizer_free(&vocabulary);
    harness_remove(&root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_questions__have_each_answer_equally_often),
        cmocka_unit_test(test_scene__shapes_lie_inside_and_apart),
        cmocka_unit_test(test_synth__same_seed_same_bytes),
        cmocka_unit_test(test_synth__foreign_folder_is_refused),
        cmocka_unit_test(test_verb__names_what_is_wrong),
        cmocka_unit_test(test_held_out__is_a_tenth_at_least_64_at_most_half),
        cmocka_unit_test(test_bpe__learns_frequent_words),
        cmocka_unit_test(test_model_folder__tokenizer_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
