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
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
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
    conf c = conf_defaults();
    c.data_path = root;
    return c;
}

static sample sample_of(const dataset *d, int64_t i, arena *a)
{
    sample s;
    assert_ok(d->adapter->sample(d, i, a, &s));
    assert_int_equal(s.id, i);
    return s;
}

static void test_good_item__has_picture_question_and_answer(void **state)
{
    (void)state;
    char *root =
        make_set(QUESTION("7", "What is it?", "7000") "," QUESTION("9", "H\\u00e9?", "9000"),
                 ANNOTATION("9", "no", "9000") "," ANNOTATION("7", "a cat", "7000"));
    conf c = conf_of(root);
    dataset *d;
    arena a;
    arena_init(&a, 0);
    c.data_suffix = " Be brief.";
    assert_ok(dataset_open(&c, &d));
    assert_int_equal(d->adapter->samples(d), 2);
    assert_int_equal(d->adapter->images(d), 2);
    assert_string_equal(d->adapter->root(d), root);
    assert_string_equal(d->adapter->image_path(d, 1),
                        "images/train2014/COCO_train2014_000000000009.jpg");
    sample s = sample_of(d, 0, &a);
    assert_null(s.cause);
    assert_string_equal(s.name, "question 7000");
    assert_int_equal(s.n_turns, 2);
    assert_int_equal(s.turns[0].role, ROLE_USER);
    assert_int_equal(s.turns[0].n_parts, 2);
    assert_int_equal(s.turns[0].parts[0].image, 0);
    assert_string_equal(s.turns[0].parts[1].text, "What is it? Be brief.");
    assert_int_equal(s.turns[0].parts[1].text_bytes, 21);
    assert_int_equal(s.turns[1].role, ROLE_ASSISTANT);
    assert_true(s.turns[1].trained && !s.turns[0].trained);
    assert_string_equal(s.turns[1].parts[0].text, "a cat");
    assert_int_equal(s.images[0], 0);
    s = sample_of(d, 1, &a);
    assert_string_equal(s.turns[0].parts[1].text, "H\xc3\xa9? Be brief.");
    assert_string_equal(s.turns[1].parts[0].text, "no");
    dataset_close(&d);
    assert_null(d);
    arena_done(&a);
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
    conf c = conf_of(root);
    dataset *d;
    arena a;
    arena_init(&a, 0);
    assert_ok(dataset_open(&c, &d));
    int64_t n = sizeof causes / sizeof *causes;
    assert_int_equal(d->adapter->samples(d), n);
    for (int64_t i = 0; i < n; i++) {
        sample s = sample_of(d, i, &a);
        if (!causes[i][0]) {
            assert_null(s.cause);
            continue;
        }
        if (!s.cause || !strstr(s.cause, causes[i][0]) || !strstr(s.cause, causes[i][1]))
            fail_msg("%s: the cause does not say \"%s\" and \"%s\": %s", s.name, causes[i][0],
                     causes[i][1], s.cause ? s.cause : "(none)");
    }
    dataset_close(&d);
    /* Grouped into conversations, the bad questions are left out, each with its cause. */
    c.data_group = GROUP_CONVERSATION;
    assert_ok(dataset_open(&c, &d));
    assert_int_equal(d->adapter->samples(d), n);
    assert_null(sample_of(d, 0, &a).cause);
    assert_non_null(sample_of(d, 1, &a).cause);
    dataset_close(&d);
    arena_done(&a);
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
    conf c = conf_of(root);
    dataset *d;
    arena a;
    arena_init(&a, 0);
    c.data_group = GROUP_CONVERSATION;
    assert_ok(dataset_open(&c, &d));
    assert_int_equal(d->adapter->samples(d), 3);
    sample s = sample_of(d, 0, &a);
    assert_int_equal(s.n_turns, 6);
    assert_int_equal(s.n_images, 1);
    assert_int_equal(s.turns[0].n_parts, 2);
    assert_int_equal(s.turns[2].n_parts, 1);
    assert_string_equal(s.turns[2].parts[0].text, "c?");
    assert_string_equal(s.turns[5].parts[0].text, "D");
    assert_string_equal(s.name, "image 7 (3 questions from 70 on)");
    s = sample_of(d, 1, &a);
    assert_int_equal(s.n_turns, 2);
    assert_non_null(sample_of(d, 2, &a).cause);
    dataset_close(&d);
    c.data_limit = 2;
    assert_ok(dataset_open(&c, &d));
    assert_int_equal(d->adapter->samples(d), 2);
    assert_int_equal(sample_of(d, 0, &a).n_turns, 6);
    dataset_close(&d);
    arena_done(&a);
    harness_remove(&root);
}

static void test_answer_drawn__by_seed_and_question(void **state)
{
    (void)state;
    char questions[6000] = "", annotations[8000] = "";
    for (int k = 0; k < 40; k++) {
        size_t q = strlen(questions), n = strlen(annotations);
        snprintf(questions + q, sizeof questions - q,
                 "%s{\"image_id\": 7, \"question\": \"q?\", \"question_id\": %d}", k ? "," : "", k);
        snprintf(annotations + n, sizeof annotations - n,
                 "%s{\"multiple_choice_answer\": \"a\", \"answers\": [{\"answer\": \"a\"}, "
                 "{\"answer\": \"b\"}], \"image_id\": 7, \"question_id\": %d}",
                 k ? "," : "", k);
    }
    char *root = make_set(questions, annotations);
    conf c = conf_of(root);
    arena a;
    arena_init(&a, 0);
    c.data_answer = ANSWER_DRAWN;
    char drawn[3][41] = {"", "", ""};
    hash128 identity[3];
    for (int run = 0; run < 3; run++) {
        dataset *d;
        c.training_seed = run == 2 ? 5 : 4;
        assert_ok(dataset_open(&c, &d));
        for (int k = 0; k < 40; k++)
            drawn[run][k] = sample_of(d, k, &a).turns[1].parts[0].text[0];
        identity[run] = d->adapter->identity(d);
        dataset_close(&d);
    }
    assert_string_equal(drawn[0], drawn[1]);
    assert_string_not_equal(drawn[0], drawn[2]);
    assert_non_null(strchr(drawn[0], 'a'));
    assert_non_null(strchr(drawn[0], 'b'));
    assert_true(hash_equal(identity[0], identity[1]));
    assert_false(hash_equal(identity[0], identity[2]));
    arena_done(&a);
    harness_remove(&root);
}

static void test_open__whole_file_failures(void **state)
{
    (void)state;
    dataset *d = NULL;
    char path[PATH];
    char *root = make_set(QUESTION("7", "a?", "70"), ANNOTATION("7", "A", "70"));
    conf c = conf_of(root);
    c.data_split = "val";
    assert_fails(ST_NO_INPUT, dataset_open(&c, &d), "the splits found are: train");
    put_file(root, "v2_OpenEnded_mscoco_val2014_questions.json", "{}");
    assert_fails(ST_NO_INPUT, dataset_open(&c, &d),
                 "*val*annotations.json here; the splits found are: train");
    assert_string_equal(strstr(status_text(), "are: "), "are: train");
    c.data_split = "train";
    c.data_stage_weights = "0.5,x";
    assert_fails(ST_CONFIG, dataset_open(&c, &d), "data.stage_weights: \"0.5,x\" is not a list");
    c.data_stage_weights = "";
    put_file(root, QUESTIONS, "{\"questions\": [{\"image_id\": 7,\n\"question\": }]}");
    assert_fails(ST_BAD_INPUT, dataset_open(&c, &d), QUESTIONS);
    put_file(root, QUESTIONS, "{\"questions\": 7}");
    assert_fails(ST_BAD_INPUT, dataset_open(&c, &d), "questions");
    put_file(root, QUESTIONS, "{\"questions\": []}");
    assert_fails(ST_BAD_INPUT, dataset_open(&c, &d), "holds no question");
    snprintf(path, sizeof path, "%s/%s", root, ANNOTATIONS);
    remove(path);
    assert_fails(ST_NO_INPUT, dataset_open(&c, &d), "*train*annotations.json");
    harness_remove(&root);
    c.data_path = "/nowhere/at/all";
    assert_fails(ST_NO_INPUT, dataset_open(&c, &d), "/nowhere/at/all");
    c.data_path = "";
    assert_fails(ST_CONFIG, dataset_open(&c, &d), "data.path is not set");
    assert_null(d);
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
        conf c = conf_of(root);
        dataset *d;
        put_file(root, "OpenEnded_mscoco_val2014_questions.json",
                 "{\"questions\": [" QUESTION("7", "a?", "70") "]}");
        put_file(root, "mscoco_val2014_annotations.json",
                 "{\"annotations\": [" ANNOTATION("7", "a", "70") "]}");
        c.data_split = "val";
        assert_fails(ST_NO_INPUT, dataset_open(&c, &d), "images/val2014/COCO_val2014_");
        const char *last = NULL;
        for (int j = 0; j < 3 && layouts[k][j]; j++) {
            last = layouts[k][j];
            make_folder(root, last);
        }
        snprintf(want, sizeof want, "%s/COCO_val2014_000000000007.jpg", last);
        for (int filled = 0; filled < 2; filled++) { /* an empty folder of this name is enough */
            assert_ok(dataset_open(&c, &d));
            assert_string_equal(d->adapter->image_path(d, 0), want);
            dataset_close(&d);
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
    conf c = conf_of(root);
    dataset *d;
    c.data_images = other;
    assert_fails(ST_NO_INPUT, dataset_open(&c, &d), "data.images can name another folder");
    make_folder(other, "train2014");
    put_file(other, "train2014/COCO_train2014_000000000007.jpg", "");
    assert_ok(dataset_open(&c, &d));
    assert_string_equal(d->adapter->root(d), other);
    assert_string_equal(d->adapter->image_path(d, 0), "train2014/COCO_train2014_000000000007.jpg");
    dataset_close(&d);
    put_file(root, "images.json", "[{\"id\": 7, \"file_name\": \"seven.png\"}]");
    put_file(other, "seven.png", "");
    assert_ok(dataset_open(&c, &d));
    assert_string_equal(d->adapter->root(d), other);
    assert_string_equal(d->adapter->image_path(d, 0), "seven.png");
    dataset_close(&d);
    harness_remove(&other);
    harness_remove(&root);
}

static void test_images_json__names_and_unknown_ids(void **state)
{
    (void)state;
    char *root = make_set(QUESTION("7", "a?", "70") "," QUESTION("8", "b?", "80"),
                          ANNOTATION("7", "A", "70") "," ANNOTATION("8", "B", "80"));
    conf c = conf_of(root);
    dataset *d;
    arena a;
    arena_init(&a, 0);
    put_file(root, "images.json", "[{\"id\": 7, \"file_name\": \"seven.png\", \"width\": 3}]");
    put_file(root, "images/seven.png", "");
    assert_ok(dataset_open(&c, &d));
    assert_int_equal(d->adapter->images(d), 1);
    assert_string_equal(d->adapter->image_path(d, 0), "seven.png");
    assert_string_equal(d->adapter->root(d) + strlen(d->adapter->root(d)) - 7, "/images");
    assert_null(sample_of(d, 0, &a).cause);
    sample s = sample_of(d, 1, &a);
    assert_non_null(s.cause);
    assert_non_null(strstr(s.cause, "image_id 8 is not in images.json"));
    dataset_close(&d);
    put_file(root, "images.json", "[{\"id\": 7, \"file_name\": \"../../etc/passwd\"}]");
    assert_fails(ST_BAD_INPUT, dataset_open(&c, &d), "lies outside the folder");
    put_file(root, "images.json", "[{\"id\": \"7\"}]");
    assert_fails(ST_BAD_INPUT, dataset_open(&c, &d), "images[0]");
    arena_done(&a);
    harness_remove(&root);
}

static void count_usable(const char *folder, const char *split, int64_t want_samples,
                         int64_t want_images)
{
    conf c = conf_of(folder);
    dataset *d;
    arena a;
    char path[2 * PATH];
    arena_init(&a, 0);
    c.data_split = split;
    assert_ok(dataset_open(&c, &d));
    if (want_samples)
        assert_int_equal(d->adapter->samples(d), want_samples);
    if (want_images)
        assert_int_equal(d->adapter->images(d), want_images);
    for (int64_t i = 0; i < d->adapter->samples(d); i++) {
        arena_reset(&a);
        sample s = sample_of(d, i, &a);
        if (s.cause)
            fail_msg("%s: %s", s.name, s.cause);
        snprintf(path, sizeof path, "%s/%s", d->adapter->root(d),
                 d->adapter->image_path(d, s.images[0]));
        if (access(path, R_OK))
            fail_msg("%s: no picture %s", s.name, path);
    }
    print_message("%s %s: %lld samples, %lld pictures\n", folder, split,
                  (long long)d->adapter->samples(d), (long long)d->adapter->images(d));
    dataset_close(&d);
    arena_done(&a);
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
