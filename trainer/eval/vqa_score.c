/* SPDX-License-Identifier: Apache-2.0 */
/* vqa_score.c: the normalisation and accuracy of vqa_score.h, as the official Python code computes
 * them; sums of accuracies by type. */
#include "trainer/eval/vqa_score.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/words.h"
#include "common/tokenizer/tokenizer_text.h"

enum {
    MARKS = 21,   /* of punctuation */
    PERIODS = 32, /* the most periods removed: the official code passes a flag of this value as the
                     count of replacements */
    REPLACEMENT = 0xFFFD
};

static const char punctuation[MARKS + 1] = ";/[]\"{}()=+\\_-><@`,?!";
static const char *const numbers[] = {"zero", "one",   "two",   "three", "four", "five",
                                      "six",  "seven", "eight", "nine",  "ten"};
static const char *const articles[] = {"a", "an", "the"};

/* A word that equals one of these except for one missing apostrophe becomes it. */
static const char *const contractions[] = {
    "ain't",       "aren't",      "can't",          "could've",     "couldn't",
    "couldn't've", "didn't",      "doesn't",        "don't",        "hadn't",
    "hadn't've",   "hasn't",      "haven't",        "he'd",         "he'd've",
    "he's",        "how'd",       "how'll",         "how's",        "isn't",
    "it'd",        "it'd've",     "it'll",          "ma'am",        "mightn't",
    "mightn't've", "might've",    "mustn't",        "must've",      "needn't",
    "not've",      "o'clock",     "oughtn't",       "'ow's'at",     "shan't",
    "she'd've",    "should've",   "shouldn't",      "shouldn't've", "somebody'd've",
    "somebody'll", "somebody's",  "someone'd",      "someone'd've", "someone'll",
    "someone's",   "something'd", "something'd've", "something'll", "that's",
    "there'd",     "there'd've",  "there're",       "there's",      "they'd",
    "they'd've",   "they'll",     "they're",        "they've",      "'twas",
    "wasn't",      "we'd've",     "we've",          "weren't",      "what'll",
    "what're",     "what's",      "what've",        "when's",       "where'd",
    "where's",     "where've",    "who'd",          "who'd've",     "who'll",
    "who's",       "who've",      "why'll",         "why're",       "why's",
    "won't",       "would've",    "wouldn't",       "wouldn't've",  "y'all",
    "y'all'll",    "y'all'd've",  "you'd",          "you'd've",     "you'll",
    "you're",      "you've"};

/* The characters of an answer on their way through the rules. */
typedef struct letters {
    int32_t *code; /* room for what the answer can become */
    size_t count;
} letters;

/* Lower case at most doubles the characters, and contractions add at most one to each word. */
static size_t room_for(size_t size)
{
    return 4 * size + 16;
}

/* Reads an answer without the white space at its ends; new lines and tabs become spaces. */
static status letters_of(span answer, letters *out)
{
    size_t begin = 0;
    *out = (letters){.code = malloc(room_for(answer.size) * sizeof *out->code)};
    if (!out->code)
        return FAIL(ST_NO_MEMORY, "no memory for an answer of %zu bytes", answer.size);
    for (size_t at = 0; at < answer.size;) {
        int32_t code;
        at += utf8_next(answer.data + at, answer.size - at, &code);
        out->code[out->count++] = code == '\n' || code == '\t' ? ' '
                                  : code < 0                   ? REPLACEMENT
                                                               : code;
    }
    while (out->count && unicode_is_space(out->code[out->count - 1]))
        out->count--;
    while (begin < out->count && unicode_is_space(out->code[begin]))
        begin++;
    out->count -= begin;
    memmove(out->code, out->code + begin, out->count * sizeof *out->code);
    return ST_OK;
}

/* True if a comma stands between two digits. */
static bool has_digit_comma(const letters *in)
{
    for (size_t i = 1; i + 1 < in->count; i++)
        if (in->code[i] == ',' && unicode_is_digit(in->code[i - 1]) &&
            unicode_is_digit(in->code[i + 1]))
            return true;
    return false;
}

/* Which of the marks this is; MARKS: none. */
static int mark_of(int32_t code)
{
    const char *at = code > 0 && code < 0x80 ? strchr(punctuation, code) : NULL;
    return at ? (int)(at - punctuation) : MARKS;
}

/* Removes a mark if it stands beside a space anywhere in the answer, or if the answer has a comma
 * between digits; otherwise the mark becomes a space. A period goes unless a digit follows. */
static void strip_punctuation(letters *text)
{
    const bool digits = has_digit_comma(text);
    bool beside_space[MARKS + 1] = {false};
    size_t count = 0, kept = 0;
    int periods = 0;
    for (size_t i = 0; i + 1 < text->count; i++) {
        if (text->code[i] == ' ')
            beside_space[mark_of(text->code[i + 1])] = true;
        if (text->code[i + 1] == ' ')
            beside_space[mark_of(text->code[i])] = true;
    }
    for (size_t i = 0; i < text->count; i++) {
        const int mark = mark_of(text->code[i]);
        if (mark == MARKS)
            text->code[count++] = text->code[i];
        else if (!digits && !beside_space[mark])
            text->code[count++] = ' ';
    }
    for (size_t i = 0; i < count; i++) {
        const bool goes = text->code[i] == '.' && periods < PERIODS &&
                          (i + 1 == count || !unicode_is_digit(text->code[i + 1]));
        periods += goes;
        if (!goes)
            text->code[kept++] = text->code[i];
    }
    text->count = kept;
}

/* Whether a word equals an ASCII word. */
static bool is_word(const int32_t *word, size_t count, const char *ascii)
{
    size_t i = 0;
    while (i < count && ascii[i] && word[i] == ascii[i])
        i++;
    return i == count && !ascii[i];
}

static bool is_article(const int32_t *word, size_t count)
{
    for (size_t i = 0; i < sizeof articles / sizeof *articles; i++)
        if (is_word(word, count, articles[i]))
            return true;
    return false;
}

/* True if word equals whole except for one apostrophe that it lacks. */
static bool lacks_apostrophe(const int32_t *word, size_t count, const char *whole)
{
    if (strlen(whole) != count + 1)
        return false;
    for (size_t at = 0; at <= count; at++) {
        if (whole[at] == '\'' && is_word(word + at, count - at, whole + at + 1))
            return true;
        if (at == count || word[at] != whole[at])
            return false;
    }
    return false;
}

/* What a word is replaced by: a digit for a number word, a contraction with its apostrophe; NULL:
 * it stays. */
static const char *spelled(const int32_t *word, size_t count)
{
    static const char *const digits[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"};
    if (is_word(word, count, "none"))
        return digits[0];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (is_word(word, count, numbers[i]))
            return digits[i];
    if (is_word(word, count, "somebody'd"))
        return "somebodyd"; /* the official table has it this way round */
    for (size_t i = 0; i < sizeof contractions / sizeof *contractions; i++)
        if (lacks_apostrophe(word, count, contractions[i]))
            return contractions[i];
    return NULL;
}

static void put_word(letters *to, const int32_t *word, size_t count)
{
    const char *other = spelled(word, count);
    if (to->count)
        to->code[to->count++] = ' ';
    for (size_t i = 0; other ? other[i] != 0 : i < count; i++)
        to->code[to->count++] = other ? other[i] : word[i];
}

/* Puts the words of `text`, in lower case and spelled alike, in place of it. */
static status normalise_words(letters *text)
{
    letters lower = {.code = malloc((2 * text->count + 1) * sizeof *lower.code)};
    if (!lower.code)
        return FAIL(ST_NO_MEMORY, "no memory for an answer of %zu characters", text->count);
    lower.count = unicode_lower(text->code, text->count, lower.code);
    text->count = 0;
    for (size_t begin = 0, end; begin < lower.count; begin = end + 1) {
        for (end = begin; end < lower.count && !unicode_is_space(lower.code[end]); end++) {
        }
        if (end > begin && !is_article(lower.code + begin, end - begin))
            put_word(text, lower.code + begin, end - begin);
    }
    free(lower.code);
    return ST_OK;
}

status vqa_compared_form(span answer, bool normalise, char **out, size_t *out_size)
{
    letters text = {0};
    char *bytes = NULL;
    size_t size = 0;
    status st;
    TRY(letters_of(answer, &text));
    if (normalise) {
        strip_punctuation(&text);
        TRY_OR(done, normalise_words(&text));
    }
    bytes = malloc(4 * text.count + 1);
    if (!bytes) {
        st = FAIL(ST_NO_MEMORY, "no memory for an answer of %zu characters", text.count);
        goto done;
    }
    for (size_t i = 0; i < text.count; i++)
        size += utf8_put(text.code[i], (uint8_t *)bytes + size);
    bytes[size] = 0;
    *out = bytes;
    *out_size = size;
    st = ST_OK;
done:
    free(text.code);
    return st;
}

/* Whether an answer in the form in which it is compared, and another in any form, are the same. */
static status is_same(span mine, span other, bool normalise, bool *out)
{
    char *theirs;
    size_t size;
    TRY(vqa_compared_form(other, normalise, &theirs, &size));
    *out = mine.size == size && memcmp(mine.data, theirs, size) == 0;
    free(theirs);
    return ST_OK;
}

/* Whether all annotators gave one answer. */
static status all_agree(const span *references, size_t count, bool *out)
{
    char *first;
    size_t size;
    status st = ST_OK;
    TRY(vqa_compared_form(references[0], false, &first, &size));
    *out = true;
    for (size_t i = 1; i < count && st == ST_OK && *out; i++)
        st = is_same(span_of(first, size), references[i], false, out);
    free(first);
    return st;
}

status vqa_accuracy(span answer, const span *references, size_t count, double *out)
{
    char *mine;
    bool agree = true;
    size_t same = 0, size;
    *out = 0;
    if (count == 0)
        return ST_OK;
    TRY(all_agree(references, count, &agree));
    TRY(vqa_compared_form(answer, !agree, &mine, &size));
    status st = ST_OK;
    for (size_t i = 0; i < count && st == ST_OK; i++) {
        bool equal = false;
        st = is_same(span_of(mine, size), references[i], !agree, &equal);
        same += equal;
    }
    free(mine);
    /* Leaving out an annotator who agrees leaves same - 1 of them, any other leaves same. */
    double without = same > 3 ? 1.0 : same ? (double)(same - 1) / 3.0 : 0.0;
    double with = same >= 3 ? 1.0 : (double)same / 3.0;
    *out = ((double)same * without + (double)(count - same) * with) / (double)count;
    return st;
}

enum { REFERENCES_MAX = 64 }; /* annotators of a question; VQAv2 has ten */
static const char source[] = "references";

double vqa_share_percent(const vqa_share *share)
{
    return share->count ? 100.0 * share->sum / (double)share->count : 0.0;
}

/* Adds to the entry of a type. Types that find no room in the table share its last entry. */
static void count_type(vqa_share *list, int *inout_count, const char *type, double accuracy)
{
    int i = 0;
    while (i < *inout_count && strncmp(list[i].type, type, VQA_TYPE_TEXT - 1) != 0)
        i++;
    if (i == VQA_TYPES_MAX)
        i--;
    else if (i == *inout_count)
        snprintf(list[(*inout_count)++].type, VQA_TYPE_TEXT, "%s", type);
    list[i].sum += accuracy;
    list[i].count++;
}

status vqa_tally_add(vqa_tally *tally, const json_value *reference, span answer, double *out)
{
    const char *question_type, *answer_type;
    span list[REFERENCES_MAX];
    double accuracy;
    const json_value *answers;
    size_t count = 0;
    TRY(json_want_text(reference, "question_type", source, &question_type));
    TRY(json_want_text(reference, "answer_type", source, &answer_type));
    TRY(json_want_array(reference, "answers", source, &answers));
    for (; count < json_count(answers) && count < REFERENCES_MAX; count++)
        list[count] = span_of(json_text(json_item(answers, count), ""),
                              json_text_size(json_item(answers, count)));
    TRY(vqa_accuracy(answer, list, count, &accuracy));
    count_type(tally->question, &tally->n_question, question_type, accuracy);
    count_type(tally->answer, &tally->n_answer, answer_type, accuracy);
    tally->all.sum += accuracy;
    tally->all.count++;
    if (out)
        *out = accuracy;
    return ST_OK;
}

static void print_shares(const char *what, const vqa_share *list, int count, FILE *to)
{
    for (int i = 0; i < count; i++)
        fprintf(to, "  %-13s %-32s %6.2f%% of %" PRId64 "\n", what, escape_text(list[i].type).text,
                vqa_share_percent(&list[i]), list[i].count);
}

void vqa_tally_print(const vqa_tally *tally, FILE *to)
{
    print_shares("answer type", tally->answer, tally->n_answer, to);
    print_shares("question type", tally->question, tally->n_question, to);
}
