/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the tokenizer against ids that others computed: those of a tiny tokenizer by the
 * reference library (tests/golden/tokenizer/make.py) and, if the shared data is there, those of the
 * published tokenizer by llama.cpp and by transformers' integration test. NFC is compared with
 * utf8proc and the published expression with PCRE2. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"
#include "common/base/rng.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_impl.h"
#include "common/tokenizer/tokenizer_text.h"

#include <utf8proc.h>

typedef struct fixture {
    tokenizer *vocabulary;
    tokenizer_scratch *scratch;
    token_list list;
} fixture;

static void fixture_open(fixture *setup, const char *folder)
{
    *setup = (fixture){0};
    assert_ok(tokenizer_load(folder, &setup->vocabulary));
    assert_ok(tokenizer_scratch_new(setup->vocabulary, &setup->scratch));
}

static void fixture_close(fixture *setup)
{
    token_list_done(&setup->list);
    tokenizer_scratch_free(&setup->scratch);
    tokenizer_free(&setup->vocabulary);
}

/* A sequence of random numbers from one key. */
typedef struct dice {
    rng_key key;
    uint64_t drawn;
} dice;

static dice dice_new(const char *purpose)
{
    return (dice){rng_key_make(harness_seed(), purpose), 0};
}

static size_t roll_below(dice *draws, size_t below)
{
    return (size_t)rng_below(draws->key, draws->drawn++, below);
}

static char *golden(const char *name)
{
    const char *source = getenv("TESSERA_SOURCE");
    char *path;
    assert_true(asprintf(&path, "%s/tests/golden/tokenizer/%s", source ? source : ".", name) > 0);
    return path;
}

static void open_golden(fixture *setup, const char *form)
{
    char *folder = golden(form);
    fixture_open(setup, folder);
    free(folder);
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

static void check_ids(fixture *setup, const char *text, size_t size, const int32_t *want,
                      size_t count)
{
    setup->list.count = 0;
    assert_ok(tokenizer_encode(setup->vocabulary, setup->scratch, text, size, &setup->list));
    bool same = setup->list.count == count &&
                (count == 0 || !memcmp(setup->list.id, want, count * sizeof *want));
    if (same)
        return;
    print_message("text: %.*s\n", (int)size, text);
    for (size_t i = 0; i < count || i < setup->list.count; i++)
        print_message("%zu: wanted %d, got %d\n", i, i < count ? want[i] : -1,
                      i < setup->list.count ? setup->list.id[i] : -1);
    fail_msg("the ids differ");
}

#define CHECK_IDS(f, text, ...)                                                                    \
    do {                                                                                           \
        const int32_t want_[] = {__VA_ARGS__};                                                     \
        check_ids(f, text, strlen(text), want_, sizeof want_ / sizeof *want_);                     \
    } while (0)

static void run_golden(const char *form)
{
    fixture setup;
    json_value *cases = NULL;
    char *path = golden("cases.json");
    open_golden(&setup, form);
    assert_ok(json_load(path, &cases));
    assert_true(json_count(cases) > 300);
    for (size_t i = 0; i < json_count(cases); i++) {
        const json_value *value = json_item(cases, i), *ids = json_find(value, "ids");
        const json_value *text = json_find(value, "text"), *decoded = json_find(value, "decoded");
        int32_t want[256];
        size_t count = json_count(ids), size;
        assert_true(count <= 256);
        for (size_t k = 0; k < count; k++)
            want[k] = (int32_t)json_int(json_item(ids, k), -1);
        check_ids(&setup, json_text(text, NULL), json_text_size(text), want, count);
        char *back;
        assert_ok(tokenizer_decode(setup.vocabulary, want, count, false, &back, &size));
        assert_int_equal(size, json_text_size(decoded));
        assert_memory_equal(back, json_text(decoded, NULL), size);
        free(back);
    }
    json_free(&cases);
    free(path);
    fixture_close(&setup);
}

static void test_encode__golden_merges_as_pairs(void **state)
{
    (void)state;
    run_golden("pairs");
}

static void test_encode__golden_merges_as_strings(void **state)
{
    (void)state;
    run_golden("strings");
}

/* Bad bytes are encoded as the U+FFFD that Python's decode('utf-8', 'replace') puts in their
 * place. */
static void test_encode__bad_bytes_become_replacement_characters(void **state)
{
    (void)state;
    static const struct {
        const char *bad, *good;
    } cases[] = {
        {"a\xFF"
         "b",
         "a\xEF\xBF\xBD"
         "b"},
        {"\xC3", "\xEF\xBF\xBD"},
        {"\xE4\xB8", "\xEF\xBF\xBD"}, /* one for a character cut short */
        {"\xE4\xB8z", "\xEF\xBF\xBDz"},
        {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* two for an overlong form */
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* three for a surrogate */
        {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* U+110000 */
        {"\xF0\x9F\x98", "\xEF\xBF\xBD"},
        {"\xF0\x9F\x98\xE4\xB8\xAD", "\xEF\xBF\xBD\xE4\xB8\xAD"},
    };
    fixture setup;
    open_golden(&setup, "pairs");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        token_list want = {0};
        assert_ok(tokenizer_encode(setup.vocabulary, setup.scratch, cases[i].good,
                                   strlen(cases[i].good), &want));
        check_ids(&setup, cases[i].bad, strlen(cases[i].bad), want.id, want.count);
        token_list_done(&want);
    }
    fixture_close(&setup);
}

static void test_encode__offsets_are_those_of_the_input(void **state)
{
    (void)state;
    fixture setup;
    open_golden(&setup, "pairs");
    /* Bytes:             0123 4 567          8..19       20 21  22 */
    const char *text = "red e\xCC\x81<|im_end|>a\xFF"
                       "b";
    assert_ok(tokenizer_encode(setup.vocabulary, setup.scratch, text, strlen(text), &setup.list));
    /* " e" + U+0301 becomes " \u00e9": the space is at byte 3, and both bytes of the letter come
     * from the e at byte 4. */
    int32_t end = tokenizer_added(setup.vocabulary, "<|im_end|>");
    bool seen = false;
    for (size_t i = 0; i < setup.list.count; i++) {
        assert_true(i == 0 || setup.list.offset[i] >= setup.list.offset[i - 1]);
        if (setup.list.id[i] == end) {
            assert_int_equal(setup.list.offset[i], 7);
            assert_true(i > 0 && setup.list.offset[i - 1] <= 4);
            assert_int_equal(setup.list.offset[i + 1], 17); /* a */
            assert_int_equal(setup.list.offset[i + 2], 18); /* the bad byte */
            seen = true;
        }
    }
    assert_true(seen);
    assert_int_equal(setup.list.offset[setup.list.count - 1], 19); /* b */
    /* A second call appends and leaves what was there. */
    size_t count = setup.list.count;
    assert_ok(tokenizer_encode(setup.vocabulary, setup.scratch, "red", 3, &setup.list));
    assert_true(setup.list.count > count && setup.list.id[0] == setup.list.id[count] &&
                setup.list.offset[count] == 0);
    fixture_close(&setup);
}

/* 300,000 letters are one piece, for which the heap of merges must grow. */
static void test_encode__a_long_piece_is_decoded_to_itself(void **state)
{
    (void)state;
    enum { SIZE = 300000 };
    fixture setup;
    open_golden(&setup, "strings");
    char *text = malloc(SIZE), *back;
    assert_non_null(text);
    for (size_t i = 0; i < SIZE; i++)
        text[i] = "redsquare"[i % 9];
    size_t size;
    assert_ok(tokenizer_encode(setup.vocabulary, setup.scratch, text, SIZE, &setup.list));
    assert_ok(
        tokenizer_decode(setup.vocabulary, setup.list.id, setup.list.count, false, &back, &size));
    assert_int_equal(size, SIZE);
    assert_memory_equal(back, text, SIZE);
    free(back);
    free(text);
    fixture_close(&setup);
}

static void test_encode__random_text_is_decoded_to_its_nfc(void **state)
{
    (void)state;
    fixture setup;
    open_golden(&setup, "pairs");
    dice draws = dice_new("text");
    for (int round = 0; round < 2000; round++) {
        char text[512];
        size_t count = 0, size;
        while (count < 200 && roll_below(&draws, 40)) {
            static const int32_t tops[] = {0x80, 0x300, 0x3000, 0x110000};
            int32_t character =
                1 + (int32_t)roll_below(&draws, (size_t)tops[roll_below(&draws, 4)] - 1);
            if (character < 0xD800 || character >= 0xE000)
                count += utf8_put(character, (uint8_t *)text + count);
        }
        nfc_scratch scratch = {0};
        mapped_text nfc = {0};
        assert_ok(nfc_normalise((const uint8_t *)text, count, &scratch, &nfc));
        setup.list.count = 0;
        assert_ok(tokenizer_encode(setup.vocabulary, setup.scratch, text, count, &setup.list));
        char *back;
        assert_ok(tokenizer_decode(setup.vocabulary, setup.list.id, setup.list.count, false, &back,
                                   &size));
        assert_int_equal(size, nfc.size);
        assert_true(count == 0 || !memcmp(back, nfc.bytes, size));
        free(back);
        mapped_text_done(&nfc);
        nfc_scratch_done(&scratch);
    }
    fixture_close(&setup);
}

/* Text that nfc_settled accepts is not normalised, so each character that it accepts must be its
 * own NFC and must not join its neighbours. */
static void test_nfc__settled_characters_do_not_change(void **state)
{
    (void)state;
    static uint8_t second[0x110000]; /* 1: the character can join the one before it */
    for (int32_t character = 1; character < 0x110000; character++) {
        int32_t part[32];
        int boundary = 0;
        if (character >= 0xD800 && character < 0xE000)
            continue;
        utf8proc_ssize_t got = utf8proc_decompose_char(
            character, part, 32, UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        for (utf8proc_ssize_t i = 1; i < got; i++)
            second[part[i]] = 1;
    }
    size_t settled = 0;
    for (int32_t character = 1; character < 0x110000; character++) {
        uint8_t text[5] = {0};
        if ((character >= 0xD800 && character < 0xE000) ||
            !nfc_settled(text, utf8_put(character, text)))
            continue;
        settled++;
        assert_false(second[character]);
        assert_int_equal(utf8proc_get_property(character)->combining_class, 0);
        utf8proc_uint8_t *nfc = utf8proc_NFC(text);
        assert_string_equal((char *)nfc, (char *)text);
        free(nfc);
    }
    assert_true(settled > 0x300 + 0x5000);
}

/* Letters and marks in random order are normalised as by utf8proc. All of them are known to
 * both. */
static void test_nfc__agrees_with_utf8proc(void **state)
{
    (void)state;
    static const int32_t pool[] = {'a',    'e',    0xC5,   0x212B,  0x1E69, 0x301, 0x307,  0x323,
                                   0x327,  0x334,  0x345,  0x344,   0x958,  0x93C, 0x1112, 0x1161,
                                   0x11AB, 0xD55C, 0x2ADC, 0x1D15E, 0xFB1D, 0x4E2D};
    dice draws = dice_new("marks");
    nfc_scratch scratch = {0};
    mapped_text ours = {0};
    for (int round = 0; round < 20000; round++) {
        uint8_t text[128];
        size_t count = 0;
        for (size_t k = 1 + roll_below(&draws, 12); k; k--)
            count += utf8_put(pool[roll_below(&draws, sizeof pool / sizeof *pool)], text + count);
        text[count] = 0;
        assert_ok(nfc_normalise(text, count, &scratch, &ours));
        utf8proc_uint8_t *theirs = utf8proc_NFC(text);
        assert_int_equal(ours.size, strlen((char *)theirs));
        assert_memory_equal(ours.bytes, theirs, ours.size);
        free(theirs);
    }
    mapped_text_done(&ours);
    nfc_scratch_done(&scratch);
}

static void test_decode__replaces_cut_characters_and_skips_special(void **state)
{
    (void)state;
    fixture setup;
    char *text;
    size_t size;
    open_golden(&setup, "pairs");
    assert_ok(tokenizer_encode(setup.vocabulary, setup.scratch, "\xF0\x9F\x98\x8A<|im_end|><think>",
                               21, &setup.list));
    assert_int_equal(setup.list.count, 6);
    assert_ok(tokenizer_decode(setup.vocabulary, setup.list.id + 1, 5, true, &text, &size));
    assert_string_equal(text, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD<think>");
    free(text);
    assert_ok(tokenizer_decode(setup.vocabulary, setup.list.id, 6, false, &text, &size));
    assert_string_equal(text, "\xF0\x9F\x98\x8A<|im_end|><think>");
    free(text);
    assert_ok(tokenizer_decode(setup.vocabulary, NULL, 0, false, &text, &size));
    assert_string_equal(text, "");
    free(text);
    int32_t unknown = tokenizer_size(setup.vocabulary);
    assert_ok(tokenizer_decode(setup.vocabulary, &unknown, 1, false, &text, &size));
    assert_string_equal(text, "");
    free(text);
    unknown = -1;
    assert_fails(ST_BAD_INPUT, tokenizer_decode(setup.vocabulary, &unknown, 1, false, &text, &size),
                 "not a token");
    fixture_close(&setup);
}

/* The published tokenizer */

static char *read_all(const char *relative, size_t *out_size)
{
    char *path = harness_shared(relative);
    assert_non_null(path);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = malloc(1 << 20);
    assert_non_null(text);
    *out_size = fread(text, 1, (1 << 20) - 1, file);
    text[*out_size] = 0;
    fclose(file);
    free(path);
    return text;
}

/* llama.cpp's vectors: texts with separator lines between them, and a line of ids for each. */
static void test_encode__llama_cpp_vectors(void **state)
{
    (void)state;
    static const char separator[] = "\n__ggml_vocab_test__\n";
    fixture setup;
    size_t size;
    if (!open_published(&setup))
        HARNESS_SKIP("no shared tokenizer");
    char *texts = read_all("data/tokenizer/ggml-vocab-qwen2.gguf.inp", &size);
    char *ids = read_all("data/tokenizer/ggml-vocab-qwen2.gguf.out", &size);
    int vectors = 0;
    char *id = ids;
    for (char *text = texts, *end; (end = strstr(text, separator));
         text = end + strlen(separator), vectors++) {
        int32_t want[512];
        size_t count = 0;
        while (*id != '\n') {
            want[count++] = (int32_t)strtol(id, &id, 10);
            while (*id == ' ')
                id++;
        }
        id++;
        check_ids(&setup, text, (size_t)(end - text), want, count);
    }
    assert_true(vectors > 40);
    free(texts);
    free(ids);
    fixture_close(&setup);
}

static void test_encode__published_vectors(void **state)
{
    (void)state;
    fixture setup;
    if (!open_published(&setup))
        HARNESS_SKIP("no shared tokenizer");
    assert_int_equal(tokenizer_size(setup.vocabulary), 151669);
    assert_int_equal(tokenizer_added(setup.vocabulary, "<|image_pad|>"), 151655);
    assert_int_equal(tokenizer_added(setup.vocabulary, "user"), -1);
    CHECK_IDS(&setup, "user", 872);
    CHECK_IDS(&setup, "assistant", 77091);
    CHECK_IDS(&setup, "system", 8948);
    CHECK_IDS(&setup, "\n", 198);
    CHECK_IDS(&setup, "\n\n", 271);
    CHECK_IDS(&setup, "Hello world", 9707, 1879);
    CHECK_IDS(&setup, " Hello world", 21927, 1879);
    CHECK_IDS(&setup, "Describe this image.", 74785, 419, 2168, 13);
    CHECK_IDS(&setup, "You are a helpful assistant.", 2610, 525, 264, 10950, 17847, 13);
    CHECK_IDS(&setup, "<|im_start|>user\n<|im_end|>", 151644, 872, 198, 151645);
    CHECK_IDS(&setup,
              "This is a test \xF0\x9F\x98\x8A\nI was born in 92000, and this is fals\xC3\xA9.\n"
              "\xE7\x94\x9F\xE6\xB4\xBB\xE7\x9A\x84\xE7\x9C\x9F\xE8\xB0\x9B\xE6\x98\xAF\n"
              "Hi  Hello\nHi   Hello\n\n \n  \n Hello\n<s>\nhi<s>there\n"
              "The following string should be properly encoded: Hello.\n"
              "But ird and \xE0\xB8\x9B\xE0\xB8\xB5   ird   \xE0\xB8\x94\nHey how are you doing",
              1986, 374, 264, 1273, 26525, 232, 198, 40, 572, 9223, 304, 220, 24, 17, 15, 15, 15,
              11, 323, 419, 374, 31932, 963, 624, 105301, 88051, 116109, 20412, 198, 13048, 220,
              21927, 198, 13048, 256, 21927, 271, 48426, 21927, 198, 44047, 397, 6023, 44047, 29,
              18532, 198, 785, 2701, 914, 1265, 387, 10277, 20498, 25, 21927, 624, 3983, 220, 2603,
              323, 220, 54684, 28319, 256, 220, 2603, 256, 220, 37033, 198, 18665, 1246, 525, 498,
              3730);
    fixture_close(&setup);
}

/* A text has the ids of its pieces, one piece after another (trainer/model/equations.md,
 * "Tokenizer"). */
static void test_encode__published_pieces(void **state)
{
    (void)state;
    static const char *const samples[][16] = {
        {"I", "'LL", " go", ",", " don", "'t", " ", "3", "x", "\xC2\xB2", "\xC2\xBD",
         " na\xC3\xAFve", NULL},
        {"a", " ", " b", "\t", "\tc", NULL},
        {"x", "\r\n\r\n", " ", " y", NULL},
        {"<", "0", ".", "3", " seconds", ">", NULL},
        {"'t", "is", NULL},
    };
    fixture setup;
    if (!open_published(&setup))
        HARNESS_SKIP("no shared tokenizer");
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        char whole[128] = "";
        token_list want = {0};
        for (size_t k = 0; samples[i][k]; k++) {
            strcat(whole, samples[i][k]);
            assert_ok(tokenizer_encode(setup.vocabulary, setup.scratch, samples[i][k],
                                       strlen(samples[i][k]), &want));
        }
        check_ids(&setup, whole, strlen(whole), want.id, want.count);
        token_list_done(&want);
    }
    fixture_close(&setup);
}

/* Splitting into pieces */

static void check_pieces(const char *expression, const char *text, const char *const *want)
{
    splitter *split = NULL;
    splitter_scratch *scratch = NULL;
    split_walk walk;
    size_t start, end;
    bool more;
    assert_ok(splitter_new(expression, strlen(expression), "test", &split));
    assert_ok(splitter_scratch_new(&scratch));
    assert_ok(split_begin(split, scratch, (const uint8_t *)text, strlen(text), &walk));
    for (;; want++) {
        assert_ok(split_next(split, scratch, &walk, &start, &end, &more));
        assert_true(more == (*want != NULL));
        if (!more)
            break;
        assert_int_equal(end - start, strlen(*want));
        assert_memory_equal(text + start, *want, end - start);
    }
    splitter_scratch_free(&scratch);
    splitter_free(&split);
}

#define PIECES(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_split__text_between_matches_is_a_piece(void **state)
{
    (void)state;
    check_pieces("[0-9]", "ab12c", PIECES("ab", "1", "2", "c"));
    check_pieces("z", "ab", PIECES("ab"));
    /* An empty match cuts the text, and the search goes on after it. */
    check_pieces("(?=b)", "abab", PIECES("a", "ba", "b"));
    check_pieces("x*", "ab\xC3\xA9", PIECES("a", "b", "\xC3\xA9"));
    check_pieces("\\s+|\\S+", "", (const char *const[]){NULL});
}

static void test_split__mongolian_vowel_separator_is_not_a_space(void **state)
{
    (void)state;
    check_pieces("\\s+|\\S+", "a\xE1\xA0\x8E\xE1\xA0\x8E b",
                 PIECES("a\xE1\xA0\x8E\xE1\xA0\x8E", " ", "b"));
}

#define PUBLISHED                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "                          \
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* The published expression is recognised and matched by our own code; in brackets it is not, and
 * PCRE2 matches it. Both must agree on random text of characters whose class has not changed
 * between versions of Unicode. */
static void test_split__own_matcher_agrees_with_pcre2(void **state)
{
    (void)state;
    static const char *const pool[] = {"a",
                                       "S",
                                       "'",
                                       "'s",
                                       "'S",
                                       "'\xC5\xBF",
                                       "'re",
                                       "'VE",
                                       "'l",
                                       "'lL",
                                       "'M",
                                       "'d",
                                       "'T",
                                       "\xC5\xBF",
                                       " ",
                                       "  ",
                                       "\t",
                                       "\n",
                                       "\r",
                                       "\r\n",
                                       "\xC2\x85",
                                       "_",
                                       "-",
                                       "1",
                                       "\xC2\xB2",
                                       "\xE3\x80\x80",
                                       "\xE2\x80\xA8",
                                       "\xC3\xA9",
                                       "\x01",
                                       "/",
                                       "\xCC\x81",
                                       "\xD9\xA3",
                                       "\xE4\xB8\xAD",
                                       "\xF0\x9D\x9F\x99",
                                       "\xF0\xA0\x80\x80",
                                       "\xF0\x9F\x98\x8A",
                                       "\xF4\x8F\xBF\xBF",
                                       "\xE2\x80\x8B",
                                       "\x7F",
                                       "e"};
    dice draws = dice_new("pieces");
    splitter *ours = NULL, *theirs = NULL;
    splitter_scratch *scratch = NULL;
    assert_ok(splitter_new(PUBLISHED, sizeof PUBLISHED - 1, "test", &ours));
    assert_ok(splitter_new("(?:" PUBLISHED ")", sizeof PUBLISHED + 3, "test", &theirs));
    assert_ok(splitter_scratch_new(&scratch));
    for (int round = 0; round < 40000; round++) {
        char text[128] = "";
        for (size_t k = roll_below(&draws, 12); k; k--)
            strcat(text, pool[roll_below(&draws, sizeof pool / sizeof *pool)]);
        const size_t size = strlen(text);
        split_walk first, second;
        bool more_a, more_b;
        assert_ok(split_begin(ours, scratch, (const uint8_t *)text, size, &first));
        assert_ok(split_begin(theirs, scratch, (const uint8_t *)text, size, &second));
        do {
            size_t start_a = 0, end_a = 0, start_b = 0, end_b = 0;
            assert_ok(split_next(ours, scratch, &first, &start_a, &end_a, &more_a));
            assert_ok(split_next(theirs, scratch, &second, &start_b, &end_b, &more_b));
            if (more_a != more_b || start_a != start_b || end_a != end_b)
                fail_msg("\"%s\": [%zu, %zu), PCRE2 [%zu, %zu)", text, start_a, end_a, start_b,
                         end_b);
        } while (more_a);
    }
    splitter_scratch_free(&scratch);
    splitter_free(&ours);
    splitter_free(&theirs);
}

/* The fingerprint is one of ids and not of a file, so both forms of the golden tokenizer have the
 * same. */
static void test_fingerprint__is_of_the_ids(void **state)
{
    (void)state;
    static const char *const forms[] = {"pairs", "strings"};
    hash128 found[2], again, rules;
    fixture setup;
    for (int k = 0; k < 2; k++) {
        open_golden(&setup, forms[k]);
        assert_ok(tokenizer_fingerprint(setup.vocabulary, &found[k]));
        assert_ok(tokenizer_fingerprint(setup.vocabulary, &again));
        assert_memory_equal(&again, &found[k], sizeof again);
        fixture_close(&setup);
    }
    assert_memory_equal(&found[0], &found[1], sizeof found[0]);
    assert_ok(tokenizer_rules(&rules));
    assert_memory_not_equal(&rules, &found[0], sizeof rules);
    if (!open_published(&setup))
        return;
    assert_ok(tokenizer_fingerprint(setup.vocabulary, &again));
    assert_memory_not_equal(&again, &found[0], sizeof again);
    fixture_close(&setup);
}

/* U+31350 is a letter since Unicode 15, so the piece after it is "_a", id 4306. PCRE2 10.42 does
 * not know it as a letter and would join it with the underscore. */
static void test_encode__letters_of_the_references_unicode(void **state)
{
    (void)state;
    fixture setup;
    if (!open_published(&setup))
        HARNESS_SKIP("no shared tokenizer");
    CHECK_IDS(&setup, "\xF0\xB1\x8D\x90_a", 172, 109, 235, 238, 4306); /* U+31350 */
    fixture_close(&setup);
}

static void test_split__longest_added_token_wins(void **state)
{
    (void)state;
    added_set set = {0};
    size_t at;
    static const char *const texts[] = {"<a", "<abc", "<ab", "b"};
    for (int i = 0; i < 4; i++)
        assert_ok(added_set_put(&set, (const uint8_t *)texts[i], strlen(texts[i]), i));
    added_set_seal(&set);
    const uint8_t *text = (const uint8_t *)"x<abd";
    assert_int_equal(added_set_find(&set, text, 5, 0, &at)->id, 2);
    assert_int_equal(at, 1);
    /* the text ends before the longer ones */
    assert_int_equal(added_set_find(&set, text, 3, 0, &at)->id, 0);
    assert_int_equal(added_set_find(&set, text, 5, 2, &at)->id, 3);
    assert_null(added_set_find(&set, text, 1, 0, &at));
    added_set_done(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode__golden_merges_as_pairs),
        cmocka_unit_test(test_encode__golden_merges_as_strings),
        cmocka_unit_test(test_encode__bad_bytes_become_replacement_characters),
        cmocka_unit_test(test_encode__offsets_are_those_of_the_input),
        cmocka_unit_test(test_encode__a_long_piece_is_decoded_to_itself),
        cmocka_unit_test(test_encode__random_text_is_decoded_to_its_nfc),
        cmocka_unit_test(test_nfc__settled_characters_do_not_change),
        cmocka_unit_test(test_nfc__agrees_with_utf8proc),
        cmocka_unit_test(test_decode__replaces_cut_characters_and_skips_special),
        cmocka_unit_test(test_split__text_between_matches_is_a_piece),
        cmocka_unit_test(test_split__mongolian_vowel_separator_is_not_a_space),
        cmocka_unit_test(test_split__own_matcher_agrees_with_pcre2),
        cmocka_unit_test(test_fingerprint__is_of_the_ids),
        cmocka_unit_test(test_encode__letters_of_the_references_unicode),
        cmocka_unit_test(test_split__longest_added_token_wins),
        cmocka_unit_test(test_encode__llama_cpp_vectors),
        cmocka_unit_test(test_encode__published_vectors),
        cmocka_unit_test(test_encode__published_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
