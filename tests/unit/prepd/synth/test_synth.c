/* Tests of prepd synth: generated data is exactly balanced and a function of the seed, never
 * replaces files that it did not make, and comes with a model folder whose parts agree. */
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
#include "prepd/synth/bpe.h"
#include "prepd/synth/synth_files.h"
#include "prepd/synth/scene.h"
#include "prepd/synth/synth.h"

/* How often a question occurs with an answer. */
typedef struct tally {
    const char *text, *answer;
    int64_t count;
} tally;
enum { MAX_TALLIES = 64 };

static int count_split(uint64_t seed, const char *split, uint64_t n, tally tallies[MAX_TALLIES])
{
    int n_tallies = 0;
    for (uint64_t i = 0; i < n; i++) {
        scene s;
        scene_question q[MAX_QUESTIONS];
        scene_draw(seed, split, SIZES_SMALL, n, i, &s);
        int n_questions = scene_questions(&s, q);
        for (int k = 0; k < n_questions; k++) {
            int at = 0;
            while (at < n_tallies && (strcmp(tallies[at].text, q[k].text) != 0 ||
                                      strcmp(tallies[at].answer, q[k].answer) != 0))
                at++;
            assert_true(at < MAX_TALLIES);
            if (at == n_tallies)
                tallies[n_tallies++] = (tally){q[k].text, q[k].answer, 0};
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
        int n = count_split(harness_seed() + k, k % 2 ? "val" : "train", sizes[k], tallies);
        assert_int_equal(n, N_COLOURS + N_FORMS + MAX_SHAPES + 2 + 2);
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++)
                if (strcmp(tallies[a].text, tallies[b].text) == 0)
                    assert_true(llabs(tallies[a].count - tallies[b].count) <= 1);
    }
}

static void test_scene__shapes_lie_inside_and_apart(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 500; i++) {
        scene s;
        scene_draw(harness_seed(), "train", i % 2 ? SIZES_COCO : SIZES_SMALL, 500, i, &s);
        float side = (float)(s.width < s.height ? s.width : s.height);
        for (int a = 0; a < s.n_shapes; a++) {
            const scene_shape *p = &s.shapes[a];
            float x = p->centre_x * (float)s.width, y = p->centre_y * (float)s.height;
            float r = 0.84f * p->radius; /* the narrowest shape reaches this far */
            assert_true(x - r >= -2 && x + r <= (float)s.width + 2);
            assert_true(y - r >= -2 && y + r <= (float)s.height + 2);
            for (int b = 0; b < a; b++) {
                float dx = fabsf(p->centre_x - s.shapes[b].centre_x) * (float)s.width;
                float dy = fabsf(p->centre_y - s.shapes[b].centre_y) * (float)s.height;
                assert_true(dx > 1.9f * r || dy > 1.9f * r);
            }
        }
        if (s.single) {
            assert_true(2 * 0.84f * s.shapes[0].radius >= 0.4f * side);
            assert_int_equal(s.shapes[0].centre_x > 0.5f, s.right);
            assert_int_equal(s.shapes[0].centre_y > 0.5f, s.bottom);
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
    char *root = harness_temp(), a[FILES_PATH_MAX], b[FILES_PATH_MAX], c[FILES_PATH_MAX];
    assert_ok(files_path(a, root, "a"));
    assert_ok(files_path(b, root, "deep/er/b"));
    assert_ok(files_path(c, root, "c"));
    assert_ok(synth_write(&(synth_options){a, 12, 5, SIZES_SMALL}));
    assert_ok(synth_write(&(synth_options){b, 40, 9, SIZES_SMALL}));
    assert_ok(synth_write(&(synth_options){b, 12, 5, SIZES_SMALL})); /* over its own files */
    assert_ok(synth_write(&(synth_options){c, 12, 6, SIZES_SMALL}));
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        hash128 x, y, z;
        hash_of(a, names[k], &x);
        hash_of(b, names[k], &y);
        hash_of(c, names[k], &z);
        if (!hash_equal(x, y))
            fail_msg("%s differs between two runs of one seed", names[k]);
        bool model = strncmp(names[k], "model/", 6) == 0;
        /* of 12 images they may be the same */
        bool questions = strstr(names[k], "questions") != NULL;
        if (!model && !questions && hash_equal(x, z))
            fail_msg("%s is the same for two seeds", names[k]);
    }
    /* Pictures of the earlier, larger run are removed. */
    char path[FILES_PATH_MAX];
    assert_ok(files_path(path, b, "images/val2014/COCO_val2014_000000000040.jpg"));
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
    bpe *b = malloc(sizeof *b);
    bpe_text texts[] = {{"banana bandana banana", 3}, {"it's 42", 1}};
    assert_non_null(b);
    assert_ok(bpe_train(texts, 2, 100, b));
    bool banana = false, space_banana = false;
    for (int i = 0; i < b->n_tokens; i++) {
        banana |= b->size[i] == 6 && memcmp(b->bytes[i], "banana", 6) == 0;
        space_banana |= b->size[i] == 7 && memcmp(b->bytes[i], " banana", 7) == 0;
        /* Text is split into single digits, so digits never merge. */
        assert_false(b->size[i] == 2 && memcmp(b->bytes[i], "42", 2) == 0);
    }
    assert_true(banana && space_banana);
    assert_int_equal(b->n_tokens, BPE_BYTES + b->n_merges);
    assert_int_equal(bpe_added_id(b, "<|endoftext|>"), b->n_tokens);
    assert_int_equal(bpe_added_id(b, "</think>"), bpe_size(b) - 1);
    assert_int_equal(bpe_added_id(b, "no such"), -1);
    free(b);
}

/* Read as the programs read it, the model folder has a token for every answer, also after a
 * newline, and the special ids of config.json are those of tokenizer.json. */
static void test_model_folder__tokenizer_agrees(void **state)
{
    (void)state;
    char *root = harness_temp(), model[FILES_PATH_MAX], config[FILES_PATH_MAX];
    tokenizer *t;
    tokenizer_scratch *scratch;
    token_list ids = {0};
    json_value *c;
    assert_ok(files_path(model, root, "model"));
    assert_ok(files_path(config, root, "model/config.json"));
    assert_ok(synth_write(&(synth_options){root, 2, 1, SIZES_SMALL}));
    assert_ok(tokenizer_load(model, &t));
    assert_ok(tokenizer_scratch_new(t, &scratch));
    assert_ok(json_load(config, &c));
    for (int i = 0; scene_text(i); i++) {
        char *back;
        size_t size;
        const char *text = scene_text(i);
        ids.count = 0;
        assert_ok(tokenizer_encode(t, scratch, text, strlen(text), &ids));
        if (!strchr(text, ' ') && ids.count != 1)
            fail_msg("\"%s\" is %zu tokens", text, ids.count);
        assert_ok(tokenizer_decode(t, ids.id, ids.count, false, &back, &size));
        assert_string_equal(back, text);
        free(back);
    }
    static const char *const special[][2] = {{"image_token_id", "<|image_pad|>"},
                                             {"video_token_id", "<|video_pad|>"},
                                             {"vision_start_token_id", "<|vision_start|>"},
                                             {"vision_end_token_id", "<|vision_end|>"}};
    for (size_t k = 0; k < sizeof special / sizeof *special; k++)
        assert_int_equal(json_int(json_find(c, special[k][0]), -1),
                         tokenizer_added(t, special[k][1]));
    const json_value *text = json_find(c, "text_config");
    int64_t rows = json_int(json_find(text, "vocab_size"), 0);
    assert_true(rows >= tokenizer_size(t) && rows % 64 == 0);
    assert_int_equal(json_int(json_find(text, "eos_token_id"), -1),
                     tokenizer_added(t, "<|im_end|>"));
    json_free(&c);
    token_list_done(&ids);
    tokenizer_scratch_free(&scratch);
    tokenizer_free(&t);
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
