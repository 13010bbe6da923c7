/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of vqav2.c: folders of VQAv2 as they are published are read as they are, and each kind of
 * bad item is refused with a cause that names its place. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prepd/dataset/dataset.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { PATH = 1024 };

static void put_file(const char *folder, const char *name, const char *text)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void make_folder(const char *folder, const char *name)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(mkdir(path, 0777), 0);
}

static const char QUESTIONS[] = "v2_OpenEnded_mscoco_train2014_questions.json";
static const char ANNOTATIONS[] = "v2_mscoco_train2014_annotations.json";

#define QUESTION(image, text, id)                                                                  \
    "{\"image_id\": " image ", \"question\": \"" text "\", \"question_id\": " id "}"
#define ANNOTATION(image, answer, id)                                                              \
    "{\"question_type\": \"none\", \"multiple_choice_answer\": \"" answer                          \
    "\", \"answers\": [{\"answer\": \"" answer "\", \"answer_id\": 1}, {\"answer\": \"other\", "   \
    "\"answer_id\": 2}], \"image_id\": " image ", \"question_id\": " id "}"

/* Makes a folder with these items in the brackets of its two files, and one picture. */
static char *make_set(const char *questions, const char *annotations)
{
    char *root = harness_temp(), text[8192];
    snprintf(text, sizeof text, "{\"info\": {}, \"questions\": [%s], \"task_type\": \"x\"}",
             questions);
    put_file(root, QUESTIONS, text);
    snprintf(text, sizeof text, "{\"annotations\": [%s]}", annotations);
    put_file(root, ANNOTATIONS, text);
    make_folder(root, "images");
    make_folder(root, "images/train2014");
    put_file(root, "images/train2014/COCO_train2014_000000000007.jpg", "");
    return root;
}

static conf conf_of(const char *root)
{
    conf options = conf_defaults();
    options.data_path = root;
    return options;
}

static sample sample_of(const dataset *set, int64_t index, arena *memory)
{
    sample smp;
    assert_ok(set->adapter->sample(set, index, memory, &smp));
    assert_int_equal(smp.id, index);
    return smp;
}

static void test_good_item__has_picture_question_and_answer(void **state)
{
    (void)state;
    char *root =
        make_set(QUESTION("7", "What is it?", "7000") "," QUESTION("9", "H\\u00e9?", "9000"),
                 ANNOTATION("9", "no", "9000") "," ANNOTATION("7", "a cat", "7000"));
    conf options = conf_of(root);
    dataset *set;
    arena memory;
    arena_init(&memory, 0);
    assert_ok(dataset_open(&options, &set));
    assert_int_equal(set->adapter->samples(set), 2);
    assert_int_equal(set->adapter->images(set), 2);
    assert_string_equal(set->adapter->root(set), root);
    assert_string_equal(set->adapter->image_path(set, 1),
                        "images/train2014/COCO_train2014_000000000009.jpg");
    sample smp = sample_of(set, 0, &memory);
    assert_null(smp.cause);
    assert_string_equal(smp.name, "question 7000");
    assert_int_equal(smp.n_turns, 2);
    assert_int_equal(smp.turns[0].role, ROLE_USER);
    assert_int_equal(smp.turns[0].n_parts, 2);
    assert_int_equal(smp.turns[0].parts[0].image, 0);
    assert_string_equal(smp.turns[0].parts[1].text, "What is it?");
    assert_int_equal(smp.turns[0].parts[1].text_bytes, 11);
    assert_int_equal(smp.turns[1].role, ROLE_ASSISTANT);
    assert_true(smp.turns[1].trained && !smp.turns[0].trained);
    assert_string_equal(smp.turns[1].parts[0].text, "a cat");
    assert_int_equal(smp.images[0], 0);
    smp = sample_of(set, 1, &memory);
    assert_string_equal(smp.turns[0].parts[1].text, "H\xc3\xa9?");
    assert_string_equal(smp.turns[1].parts[0].text, "no");
    dataset_close(&set);
    assert_null(set);
    arena_done(&memory);
    harness_remove(&root);
}

/* A folder has one bad item of each kind. Each cause names the file, the place, what was expected
 * and what was found. */
static void test_bad_items__cost_only_themselves(void **state)
{
    (void)state;
    char *root = make_set(
        QUESTION("7", "fine?", "1") "," QUESTION("7", "again?", "1") "," QUESTION(
            "7", "no annotation?",
            "2") "," QUESTION("7", " ",
                              "3") "," QUESTION("7", "blank answer?",
                                                "4") ","
                                                     "{\"image_id\": \"7\", \"question\": \"x\", "
                                                     "\"question_id\": 5},"
                                                     "{\"image_id\": 7, \"question\": 12, "
                                                     "\"question_id\": 6},"
                                                     "{\"image_id\": 7, \"question\": \"no id\"},"
                                                     "17," QUESTION("7", "answer is a number?", "8") "," QUESTION(
                                                         "7", "other image?",
                                                         "9") "," QUESTION("7", "two?",
                                                                           "10") "," QUESTION("-7",
                                                                                              "nega"
                                                                                              "tive"
                                                                                              "?",
                                                                                              "11"),
        ANNOTATION("7", "yes", "1") "," ANNOTATION("7", "x", "3") "," ANNOTATION("7", "  ", "4") "," ANNOTATION(
            "7", "x",
            "5") "," ANNOTATION("7", "x",
                                "6") ","
                                     "{\"image_id\": 7, \"question_id\": 8, "
                                     "\"multiple_choice_answer\": 3}," ANNOTATION("8", "x", "9") "," ANNOTATION(
                                         "7", "x",
                                         "10") "," ANNOTATION("7", "y",
                                                              "10") "," ANNOTATION("-7", "x",
                                                                                   "11") "," ANNOTATION("7",
                                                                                                        "of nobody",
                                                                                                        "12345"));
    static const char *const causes[][2] = {
        {NULL, NULL},
        {"question_id 1 was given before", QUESTIONS},
        {"question_id 2 has no annotation", ANNOTATIONS},
        {"\"question\" is empty", QUESTIONS},
        {"\"multiple_choice_answer\" is empty", ANNOTATIONS},
        {"\"image_id\": expected", QUESTIONS},
        {"\"question\": expected", "found"},
        {"\"question_id\" is missing", QUESTIONS},
        {"expected an object", "byte"},
        {"\"multiple_choice_answer\": expected", ANNOTATIONS},
        {"image_id 8, but the question has 7", "byte"},
        {"second annotation", "byte"},
        {"image_id -7 is negative", "byte"},
    };
    conf options = conf_of(root);
    dataset *set;
    arena memory;
    arena_init(&memory, 0);
    assert_ok(dataset_open(&options, &set));
    int64_t count = sizeof causes / sizeof *causes;
    assert_int_equal(set->adapter->samples(set), count);
    for (int64_t i = 0; i < count; i++) {
        sample smp = sample_of(set, i, &memory);
        if (!causes[i][0]) {
            assert_null(smp.cause);
            continue;
        }
        if (!smp.cause || !strstr(smp.cause, causes[i][0]) || !strstr(smp.cause, causes[i][1]))
            fail_msg("%s: the cause does not say \"%s\" and \"%s\": %s", smp.name, causes[i][0],
                     causes[i][1], smp.cause ? smp.cause : "(none)");
    }
    dataset_close(&set);
    /* Grouped into conversations, the bad questions are left out, each with its cause. */
    options.data_group = GROUP_CONVERSATION;
    assert_ok(dataset_open(&options, &set));
    assert_int_equal(set->adapter->samples(set), count);
    assert_null(sample_of(set, 0, &memory).cause);
    assert_non_null(sample_of(set, 1, &memory).cause);
    dataset_close(&set);
    arena_done(&memory);
    harness_remove(&root);
}

static void test_group_conversation__questions_become_turns(void **state)
{
    (void)state;
    char *root =
        make_set(QUESTION("7", "a?", "70") "," QUESTION("8", "b?", "80") "," QUESTION(
                     "7", "c?", "71") "," QUESTION("7", "bad?", "72") "," QUESTION("7", "d?", "73"),
                 ANNOTATION("7", "A", "70") "," ANNOTATION("8", "B", "80") "," ANNOTATION(
                     "7", "C", "71") "," ANNOTATION("7", "D", "73"));
    conf options = conf_of(root);
    dataset *set;
    arena memory;
    arena_init(&memory, 0);
    options.data_group = GROUP_CONVERSATION;
    assert_ok(dataset_open(&options, &set));
    assert_int_equal(set->adapter->samples(set), 3);
    sample smp = sample_of(set, 0, &memory);
    assert_int_equal(smp.n_turns, 6);
    assert_int_equal(smp.n_images, 1);
    assert_int_equal(smp.turns[0].n_parts, 2);
    assert_int_equal(smp.turns[2].n_parts, 1);
    assert_string_equal(smp.turns[2].parts[0].text, "c?");
    assert_string_equal(smp.turns[5].parts[0].text, "D");
    assert_string_equal(smp.name, "image 7 (3 questions from 70 on)");
    smp = sample_of(set, 1, &memory);
    assert_int_equal(smp.n_turns, 2);
    assert_non_null(sample_of(set, 2, &memory).cause);
    dataset_close(&set);
    options.data_limit = 2;
    assert_ok(dataset_open(&options, &set));
    assert_int_equal(set->adapter->samples(set), 2);
    assert_int_equal(sample_of(set, 0, &memory).n_turns, 6);
    dataset_close(&set);
    arena_done(&memory);
    harness_remove(&root);
}

static void test_answer_drawn__by_seed_and_question(void **state)
{
    (void)state;
    char questions[6000] = "", annotations[8000] = "";
    for (int k = 0; k < 40; k++) {
        size_t asked = strlen(questions), answered = strlen(annotations);
        snprintf(questions + asked, sizeof questions - asked,
                 "%s{\"image_id\": 7, \"question\": \"q?\", \"question_id\": %d}", k ? "," : "", k);
        snprintf(annotations + answered, sizeof annotations - answered,
                 "%s{\"multiple_choice_answer\": \"a\", \"answers\": [{\"answer\": \"a\"}, "
                 "{\"answer\": \"b\"}], \"image_id\": 7, \"question_id\": %d}",
                 k ? "," : "", k);
    }
    char *root = make_set(questions, annotations);
    conf options = conf_of(root);
    arena memory;
    arena_init(&memory, 0);
    options.data_answer = ANSWER_DRAWN;
    char drawn[3][41] = {"", "", ""};
    hash128 identity[3];
    for (int run = 0; run < 3; run++) {
        dataset *set;
        options.training_seed = run == 2 ? 5 : 4;
        assert_ok(dataset_open(&options, &set));
        for (int k = 0; k < 40; k++)
            drawn[run][k] = sample_of(set, k, &memory).turns[1].parts[0].text[0];
        identity[run] = set->adapter->identity(set);
        dataset_close(&set);
    }
    assert_string_equal(drawn[0], drawn[1]);
    assert_string_not_equal(drawn[0], drawn[2]);
    assert_non_null(strchr(drawn[0], 'a'));
    assert_non_null(strchr(drawn[0], 'b'));
    assert_true(hash_equal(identity[0], identity[1]));
    assert_false(hash_equal(identity[0], identity[2]));
    arena_done(&memory);
    harness_remove(&root);
}

static void test_open__whole_file_failures(void **state)
{
    (void)state;
    dataset *set = NULL;
    char path[PATH];
    char *root = make_set(QUESTION("7", "a?", "70"), ANNOTATION("7", "A", "70"));
    conf options = conf_of(root);
    options.data_split = "val";
    assert_fails(ST_NO_INPUT, dataset_open(&options, &set), "the splits found are: train");
    put_file(root, "v2_OpenEnded_mscoco_val2014_questions.json", "{}");
    assert_fails(ST_NO_INPUT, dataset_open(&options, &set),
                 "*val*annotations.json here; the splits found are: train");
    assert_string_equal(strstr(status_text(), "are: "), "are: train");
    options.data_split = "train";
    options.data_stage_weights = "0.5,x";
    assert_fails(ST_CONFIG, dataset_open(&options, &set),
                 "data.stage_weights: \"0.5,x\" is not a list");
    options.data_stage_weights = "";
    put_file(root, QUESTIONS, "{\"questions\": [{\"image_id\": 7,\n\"question\": }]}");
    assert_fails(ST_BAD_INPUT, dataset_open(&options, &set), QUESTIONS);
    put_file(root, QUESTIONS, "{\"questions\": 7}");
    assert_fails(ST_BAD_INPUT, dataset_open(&options, &set), "questions");
    put_file(root, QUESTIONS, "{\"questions\": []}");
    assert_fails(ST_BAD_INPUT, dataset_open(&options, &set), "holds no question");
    snprintf(path, sizeof path, "%s/%s", root, ANNOTATIONS);
    remove(path);
    assert_fails(ST_NO_INPUT, dataset_open(&options, &set), "*train*annotations.json");
    harness_remove(&root);
    options.data_path = "/nowhere/at/all";
    assert_fails(ST_NO_INPUT, dataset_open(&options, &set), "/nowhere/at/all");
    options.data_path = "";
    assert_fails(ST_CONFIG, dataset_open(&options, &set), "data.path is not set");
    assert_null(set);
}

/* Pictures are found in the folders that the archives make, and in the older layout
 * Images/mscoco. */
static void test_open__layouts(void **state)
{
    (void)state;
    static const char *const layouts[][3] = {{"images", "images/val2014", NULL},
                                             {"Images", "Images/mscoco", "Images/mscoco/val2014"},
                                             {"val2014", NULL, NULL}};
    for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
        char *root = harness_temp(), name[PATH], want[PATH];
        conf options = conf_of(root);
        dataset *set;
        put_file(root, "OpenEnded_mscoco_val2014_questions.json",
                 "{\"questions\": [" QUESTION("7", "a?", "70") "]}");
        put_file(root, "mscoco_val2014_annotations.json",
                 "{\"annotations\": [" ANNOTATION("7", "a", "70") "]}");
        options.data_split = "val";
        assert_fails(ST_NO_INPUT, dataset_open(&options, &set), "images/val2014/COCO_val2014_");
        const char *last = NULL;
        for (int j = 0; j < 3 && layouts[k][j]; j++) {
            last = layouts[k][j];
            make_folder(root, last);
        }
        snprintf(want, sizeof want, "%s/COCO_val2014_000000000007.jpg", last);
        for (int filled = 0; filled < 2; filled++) { /* an empty folder of this name is enough */
            assert_ok(dataset_open(&options, &set));
            assert_string_equal(set->adapter->image_path(set, 0), want);
            dataset_close(&set);
            snprintf(name, sizeof name, "%s", want);
            put_file(root, name, "");
        }
        harness_remove(&root);
    }
}

static void test_open__pictures_elsewhere(void **state)
{
    (void)state;
    char *root = make_set(QUESTION("7", "a?", "70"), ANNOTATION("7", "A", "70"));
    char *other = harness_temp();
    conf options = conf_of(root);
    dataset *set;
    options.data_images = other;
    assert_fails(ST_NO_INPUT, dataset_open(&options, &set), "data.images can name another folder");
    make_folder(other, "train2014");
    put_file(other, "train2014/COCO_train2014_000000000007.jpg", "");
    assert_ok(dataset_open(&options, &set));
    assert_string_equal(set->adapter->root(set), other);
    assert_string_equal(set->adapter->image_path(set, 0),
                        "train2014/COCO_train2014_000000000007.jpg");
    dataset_close(&set);
    put_file(root, "images.json", "[{\"id\": 7, \"file_name\": \"seven.png\"}]");
    put_file(other, "seven.png", "");
    assert_ok(dataset_open(&options, &set));
    assert_string_equal(set->adapter->root(set), other);
    assert_string_equal(set->adapter->image_path(set, 0), "seven.png");
    dataset_close(&set);
    harness_remove(&other);
    harness_remove(&root);
}

static void test_images_json__names_and_unknown_ids(void **state)
{
    (void)state;
    char *root = make_set(QUESTION("7", "a?", "70") "," QUESTION("8", "b?", "80"),
                          ANNOTATION("7", "A", "70") "," ANNOTATION("8", "B", "80"));
    conf options = conf_of(root);
    dataset *set;
    arena memory;
    arena_init(&memory, 0);
    put_file(root, "images.json", "[{\"id\": 7, \"file_name\": \"seven.png\", \"width\": 3}]");
    put_file(root, "images/seven.png", "");
    assert_ok(dataset_open(&options, &set));
    assert_int_equal(set->adapter->images(set), 1);
    assert_string_equal(set->adapter->image_path(set, 0), "seven.png");
    assert_string_equal(set->adapter->root(set) + strlen(set->adapter->root(set)) - 7, "/images");
    assert_null(sample_of(set, 0, &memory).cause);
    sample smp = sample_of(set, 1, &memory);
    assert_non_null(smp.cause);
    assert_non_null(strstr(smp.cause, "image_id 8 is not in images.json"));
    dataset_close(&set);
    put_file(root, "images.json", "[{\"id\": 7, \"file_name\": \"../../etc/passwd\"}]");
    assert_fails(ST_BAD_INPUT, dataset_open(&options, &set), "lies outside the folder");
    put_file(root, "images.json", "[{\"id\": \"7\"}]");
    assert_fails(ST_BAD_INPUT, dataset_open(&options, &set), "images[0]");
    arena_done(&memory);
    harness_remove(&root);
}

static void count_usable(const char *folder, const char *split, int64_t want_samples,
                         int64_t want_images)
{
    conf options = conf_of(folder);
    dataset *set;
    arena memory;
    char path[2 * PATH];
    arena_init(&memory, 0);
    options.data_split = split;
    assert_ok(dataset_open(&options, &set));
    if (want_samples)
        assert_int_equal(set->adapter->samples(set), want_samples);
    if (want_images)
        assert_int_equal(set->adapter->images(set), want_images);
    for (int64_t i = 0; i < set->adapter->samples(set); i++) {
        arena_reset(&memory);
        sample smp = sample_of(set, i, &memory);
        if (smp.cause)
            fail_msg("%s: %s", smp.name, smp.cause);
        snprintf(path, sizeof path, "%s/%s", set->adapter->root(set),
                 set->adapter->image_path(set, smp.images[0]));
        if (access(path, R_OK))
            fail_msg("%s: no picture %s", smp.name, path);
    }
    print_message("%s %s: %lld samples, %lld pictures\n", folder, split,
                  (long long)set->adapter->samples(set), (long long)set->adapter->images(set));
    dataset_close(&set);
    arena_done(&memory);
}

static void test_shared__published_folders_are_read(void **state)
{
    (void)state;
    char *official = harness_shared("data/vqav2"), *style = harness_shared("data/vqav2-style");
    if (!official || !style) {
        free(official);
        free(style);
        HARNESS_SKIP("no shared data");
    }
    count_usable(official, "train", 0, 0);
    count_usable(official, "val", 0, 0);
    count_usable(style, "project", 207, 0);
    free(official);
    free(style);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_item__has_picture_question_and_answer),
        cmocka_unit_test(test_bad_items__cost_only_themselves),
        cmocka_unit_test(test_group_conversation__questions_become_turns),
        cmocka_unit_test(test_answer_drawn__by_seed_and_question),
        cmocka_unit_test(test_open__whole_file_failures),
        cmocka_unit_test(test_open__layouts),
        cmocka_unit_test(test_open__pictures_elsewhere),
        cmocka_unit_test(test_images_json__names_and_unknown_ids),
        cmocka_unit_test(test_shared__published_folders_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
