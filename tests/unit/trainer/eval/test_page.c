/* SPDX-License-Identifier: Apache-2.0 */
/* test_page.c: the predictions page as a reader of HTML and of PNG sees it: pictures put together
 * from a row's patches, questions and answers as text. Letters: x, y a place in the picture. */
#include "tests/harness.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer/eval/page.h"

enum { HIGH = 4, WIDE = 6, SIDE = PATCH_SIDE, PATCHES = HIGH * WIDE };

static const html_mark mark = {.step = 3};

/* The colour of a pixel of picture picture; pixels that a wrong order would mix up differ. */
static uint8_t colour(int picture, int y, int x, int channel)
{
    return (uint8_t)(picture * 71 + y * 13 + x * 7 + channel * 101 + y * x);
}

/* Two documents with a picture of HIGH x WIDE patches each, and a third without. */
static row two_pictures(arena *memory)
{
    row packed = {
        .n_tokens = 2 * (PATCHES / 4 + 2) + 2, .n_docs = 3, .n_items = 2, .n_patches = 2 * PATCHES};
    assert_ok(row_alloc(&packed, memory, 0));
    for (int i = 0; i < 2; i++) {
        uint8_t *patch = packed.pixels + (size_t)i * PATCHES * PATCH_BYTES;
        for (int by = 0; by < HIGH / 2; by++)
            for (int bx = 0; bx < WIDE / 2; bx++)
                for (int in = 0; in < 4; in++, patch += PATCH_BYTES)
                    for (int at = 0; at < PATCH_BYTES; at++)
                        patch[at] = colour(i, (2 * by + in / 2) * SIDE + at % 256 / 16,
                                           (2 * bx + in % 2) * SIDE + at % 16, at / 256);
        memcpy(packed.grid_thw + 3 * i, (int32_t[]){1, HIGH, WIDE}, 3 * sizeof(int32_t));
        int32_t begin = i * (PATCHES / 4 + 2);
        for (int32_t token = 0; token < PATCHES / 4; token++)
            packed.visual_row[begin + token] = i * PATCHES / 4 + token;
        packed.cu_seqlens[i + 1] = begin + PATCHES / 4 + 2;
    }
    packed.cu_seqlens[3] = (int32_t)packed.n_tokens;
    packed.doc_sample_id[1] = 12;
    return packed;
}

static size_t decode_base64(const char *text, uint8_t *out)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t count = 0;
    for (; *text && *text != '"'; text += 4) {
        uint32_t group = 0;
        int missing = 0;
        for (int i = 0; i < 4; i++) {
            const char *at = strchr(digit, text[i]);
            missing += text[i] == '=';
            assert_true(at || text[i] == '=');
            group = group << 6 | (text[i] == '=' ? 0 : (uint32_t)(at - digit));
        }
        for (int i = 0; i < 3 - missing; i++)
            out[count++] = (uint8_t)(group >> (16 - 8 * i));
    }
    return count;
}

static void expect_picture(const char *uri, int number)
{
    static const char start[] = "data:image/png;base64,";
    assert_memory_equal(uri, start, sizeof start - 1);
    uint8_t *bytes = malloc(strlen(uri)), *rgb;
    assert_non_null(bytes);
    size_t count = decode_base64(uri + sizeof start - 1, bytes);
    png_image image = {.version = PNG_IMAGE_VERSION};
    assert_true(png_image_begin_read_from_memory(&image, bytes, count));
    assert_int_equal(image.width, WIDE * SIDE);
    assert_int_equal(image.height, HIGH * SIDE);
    image.format = PNG_FORMAT_RGB;
    rgb = malloc(PNG_IMAGE_SIZE(image));
    assert_non_null(rgb);
    assert_true(png_image_finish_read(&image, NULL, rgb, 0, NULL));
    for (int y = 0; y < HIGH * SIDE; y++)
        for (int x = 0; x < WIDE * SIDE; x++)
            for (int channel = 0; channel < 3; channel++)
                assert_int_equal(rgb[(y * WIDE * SIDE + x) * 3 + channel],
                                 colour(number, y, x, channel));
    free(rgb);
    free(bytes);
}

static void test_picture_data_uri__is_the_picture(void **state)
{
    (void)state;
    arena memory;
    arena_init(&memory, 0);
    row packed = two_pictures(&memory);
    for (int i = 0; i < 2; i++) {
        char *uri = NULL;
        assert_ok(picture_data_uri(&packed, i, i * PATCHES, &uri));
        expect_picture(uri, i);
        free(uri);
    }
    arena_done(&memory);
}

static int64_t count_occurrences(const char *text, const char *part)
{
    int64_t count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        count++;
    return count;
}

static void test_page__has_questions_under_their_pictures(void **state)
{
    (void)state;
    arena memory;
    arena_init(&memory, 0);
    row packed = two_pictures(&memory);
    char path[] = "/tmp/test_page_XXXXXX", text[200000];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    unlink(path);
    page *sheet = NULL;
    const html_fact facts[] = {{"accuracy", "50.0 %", "of <2> answers"}, {"model", "m & n", ""}};
    vqa_tally tally = {.n_question = 1, .question = {{.type = "what <is>", .sum = 1, .count = 2}}};
    assert_ok(page_new(path, mark, &sheet));
    assert_ok(page_add(sheet, &packed, 0, &(page_entry){"what?", "red", "red & \"blue\" <b>", 1}));
    assert_ok(page_add(sheet, &packed, 0,
                       &(page_entry){"where?", "left\x1b[31m\xff'\n\xc2\x9b", "right", 0}));
    assert_ok(page_add(sheet, &packed, 1, &(page_entry){"which?", "one", "two", -1}));
    assert_ok(
        page_add(sheet, &packed, 1,
                 &(page_entry){"and then?", "three", "three", -1, PAGE_RIGHT, .goes_on = true}));
    assert_ok(page_add(sheet, &packed, 2, &(page_entry){"and without?", "none", "none", 0.6}));
    assert_ok(page_add(
        sheet, &packed, 2,
        &(page_entry){"and more?", "a long one", "a long", -1, PAGE_RIGHT_SO_FAR, .is_cut = true}));
    assert_ok(page_finish(sheet, facts, 2, &tally));
    page_free(&sheet);

    FILE *file = fopen(path, "re");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    unlink(path);
    assert_int_equal(count_occurrences(text, "<section>"),
                     3); /* two questions are about the first picture */
    assert_int_equal(count_occurrences(text, "</section>"), 3);
    assert_int_equal(count_occurrences(text, "<img "), 2);
    assert_int_equal(count_occurrences(text, "<td>red &amp; &quot;blue&quot; &lt;b&gt;</td>"), 1);
    assert_int_equal(count_occurrences(text, "<td>left\\x1b[31m\\xff&#39;\n\\u009b</td>"), 1);
    assert_int_equal(count_occurrences(text, "class=\"right\""), 3);
    assert_int_equal(count_occurrences(text, "class=\"right goes-on\""), 1);
    assert_int_equal(count_occurrences(text, "class=\"wrong\""), 2);
    /* every answer is judged: by annotators in percent, else in words */
    assert_int_equal(count_occurrences(text, "<td>two</td><td>wrong</td><td>12</td></tr>"), 1);
    assert_int_equal(count_occurrences(text, "<td>three</td><td>right</td><td>12</td></tr>"), 1);
    assert_int_equal(count_occurrences(text, "<td>a long&hellip;</td><td>right so far</td>"), 1);
    assert_int_equal(count_occurrences(text, "<td>none</td><td>60 %</td>"), 1);
    assert_int_equal(count_occurrences(text, "6 questions below are"), 1);
    assert_int_equal(count_occurrences(text, "; 4 answers are right."), 1);
    assert_int_equal(count_occurrences(text, "<dt>accuracy</dt><dd>50.0 %<small>of &lt;2&gt;"), 1);
    assert_int_equal(count_occurrences(text, "<dt>model</dt><dd>m &amp; n</dd>"), 1);
    assert_int_equal(count_occurrences(text, "what &lt;is&gt;</td><td>2</td><td>50.00 %"), 1);
    assert_int_equal(count_occurrences(text, "://"), 0); /* no reference to a network */
    const char *first = strstr(text, "src=\""), *second = strstr(first + 1, "src=\"");
    assert_non_null(second);
    expect_picture(first + 5, 0);
    expect_picture(second + 5, 1);
    arena_done(&memory);
}

/* A branch has no picture of its own: its question stands under that of its prefix. */
static void test_page__shows_the_picture_of_a_prefix(void **state)
{
    (void)state;
    arena memory;
    arena_init(&memory, 0);
    row packed = two_pictures(&memory);
    char path[] = "/tmp/test_page_XXXXXX", text[100000];
    int fd = mkstemp(path);
    page *sheet = NULL;
    assert_true(fd >= 0);
    close(fd);
    unlink(path);
    assert_ok(arena_calloc(&memory, 3, sizeof(int32_t), (void **)&packed.doc_prefix));
    packed.doc_prefix[0] = packed.doc_prefix[1] = packed.doc_part[1] = -1;
    packed.doc_prefix[2] = 1;
    assert_ok(page_new(path, mark, &sheet));
    assert_ok(page_add(sheet, &packed, 2, &(page_entry){"what?", "red", "red", 1}));
    assert_ok(page_finish(sheet, NULL, 0, &(vqa_tally){0}));
    page_free(&sheet);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    unlink(path);
    assert_int_equal(count_occurrences(text, "<img "), 1);
    expect_picture(strstr(text, "src=\"") + 5, 1);
    arena_done(&memory);
}

/* Writes an empty page of `run` and returns the name that it got in the folder. */
static const char *put_page(const char *path, const char *run, int64_t step)
{
    static char got[STATUS_PATH_MAX];
    const conf options = {.job_dump_folder = run, .model_path = run};
    page *sheet = NULL;
    assert_ok(page_new(path, html_mark_of(&options, step), &sheet));
    assert_ok(page_finish(sheet, NULL, 0, &(vqa_tally){0}));
    snprintf(got, sizeof got, "%s", page_path(sheet));
    page_free(&sheet);
    return strrchr(got, '/') + 1;
}

static void test_page__does_not_replace_that_of_another_run(void **state)
{
    (void)state;
    char *folder = harness_temp(), path[STATUS_PATH_MAX], plain[STATUS_PATH_MAX];
    char aside[STATUS_PATH_MAX];
    snprintf(path, sizeof path, "%s/page.v1.html", folder);
    snprintf(plain, sizeof plain, "%s/notes", folder);
    assert_string_equal(put_page(path, "/run/a", 20), "page.v1.html");
    assert_string_equal(put_page(path, "/run/a", 40), "page.v1.html");
    assert_string_equal(put_page(path, "/run/a", 20), "page.v1-2.html"); /* of an earlier step */
    assert_string_equal(put_page(path, "/run/a", -1), "page.v1-3.html"); /* of model.path */
    assert_string_equal(put_page(path, "/run/b", 40), "page.v1-4.html");
    assert_string_equal(put_page(path, "/run/b", 41), "page.v1-4.html");
    fclose(fopen(plain, "we"));
    assert_string_equal(put_page(plain, "/run/b", 41), "notes-2");

    const conf run = {.job_dump_folder = "/run/a"}, other = {.job_dump_folder = "/run/b"};
    assert_ok(html_page_set_aside(path, html_mark_of(&other, 0), false, aside));
    assert_string_equal(aside, ""); /* not its own */
    assert_ok(html_page_set_aside(path, html_mark_of(&run, 40), true, aside));
    assert_string_equal(aside, ""); /* it resumes from there */
    assert_ok(html_page_set_aside(path, html_mark_of(&run, 39), false, aside));
    assert_string_equal(strrchr(aside, '/'), "/set-aside-page.v1.html");
    assert_string_equal(put_page(path, "/run/b", 1), "page.v1.html");
    assert_ok(html_page_set_aside(path, html_mark_of(&run, 39), true, aside));
    assert_string_equal(strrchr(aside, '/'), "/set-aside-page.v1-2.html");
    harness_remove(&folder);
}

static void test_page__names_its_option_if_it_cannot_be_written(void **state)
{
    (void)state;
    page *sheet = NULL;
    assert_ok(page_new("/tmp/test_page_no_such_folder/page.html", mark, &sheet));
    assert_fails(ST_CANT_CREATE, page_finish(sheet, NULL, 0, &(vqa_tally){0}), "eval.page");
    page_free(&sheet);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_picture_data_uri__is_the_picture),
        cmocka_unit_test(test_page__has_questions_under_their_pictures),
        cmocka_unit_test(test_page__shows_the_picture_of_a_prefix),
        cmocka_unit_test(test_page__does_not_replace_that_of_another_run),
        cmocka_unit_test(test_page__names_its_option_if_it_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
