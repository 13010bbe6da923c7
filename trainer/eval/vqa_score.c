/* vqa_score.c: the normalisation and accuracy of vqa_score.h, as the official Python code computes
 * them. */
#include "trainer/eval/vqa_score.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static const char punctuation[] = ";/[]\"{}()=+\\_-><@`,?!";
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

/* True if a comma stands between two digits. */
static bool has_digit_comma(const char *in)
{
    for (const char *at = in; *at; at++)
        if (at > in && *at == ',' && isdigit((unsigned char)at[-1]) &&
            isdigit((unsigned char)at[1]))
            return true;
    return false;
}

/* True if `letter` stands beside a space anywhere. */
static bool beside_space(const char *in, char letter)
{
    for (const char *at = in; *at; at++)
        if (*at == letter && (at[1] == ' ' || (at > in && at[-1] == ' ')))
            return true;
    return false;
}

/* Removes a mark if it stands beside a space anywhere in the answer, or if the answer has a comma
 * between digits; otherwise the mark becomes a space. A period goes unless a digit follows. */
static void strip_punctuation(const char *in, char *out)
{
    bool digits = has_digit_comma(in);
    size_t count = 0;
    for (const char *at = in; *at; at++) {
        bool mark = strchr(punctuation, *at) != NULL;
        if (mark && (digits || beside_space(in, *at)))
            continue;
        out[count++] = mark ? ' ' : *at;
    }
    out[count] = 0;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (out[i] != '.' || isdigit((unsigned char)out[i + 1]))
            out[kept++] = out[i];
    out[kept] = 0;
}

static bool is_article(const char *word)
{
    for (size_t i = 0; i < sizeof articles / sizeof *articles; i++)
        if (strcmp(word, articles[i]) == 0)
            return true;
    return false;
}

/* True if word equals whole except for one apostrophe that it lacks. */
static bool lacks_apostrophe(const char *word, const char *whole)
{
    size_t length = strlen(word);
    if (strlen(whole) != length + 1)
        return false;
    for (size_t at = 0; at <= length; at++)
        if (whole[at] == '\'' && strncmp(word, whole, at) == 0 &&
            strcmp(word + at, whole + at + 1) == 0)
            return true;
    return false;
}

/* A digit for a number word, a contraction with its apostrophe; any other word as it is. */
static const char *spelled(const char *word)
{
    static const char *const digits[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"};
    if (strcmp(word, "none") == 0)
        return digits[0];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(word, numbers[i]) == 0)
            return digits[i];
    if (strcmp(word, "somebody'd") == 0)
        return "somebodyd"; /* the official table has it this way round */
    for (size_t i = 0; i < sizeof contractions / sizeof *contractions; i++)
        if (lacks_apostrophe(word, contractions[i]))
            return contractions[i];
    return word;
}

static void put_word(char *out, size_t *length, const char *word)
{
    size_t size = strlen(word);
    if (*length + size + 2 > VQA_ANSWER_MAX)
        return;
    if (*length)
        out[(*length)++] = ' ';
    memcpy(out + *length, word, size + 1);
    *length += size;
}

/* Removes white space at both ends; new lines and tabs become spaces. */
static void trim(const char *in, char out[VQA_ANSWER_MAX])
{
    size_t count = 0;
    while (isspace((unsigned char)*in))
        in++;
    for (; *in && count + 1 < VQA_ANSWER_MAX; in++)
        out[count++] = *in == '\n' || *in == '\t' ? ' ' : *in;
    while (count && isspace((unsigned char)out[count - 1]))
        count--;
    out[count] = 0;
}

void vqa_normalise(const char *answer, char out[VQA_ANSWER_MAX])
{
    char trimmed[VQA_ANSWER_MAX], plain[VQA_ANSWER_MAX], *rest = NULL;
    size_t count = 0;
    trim(answer, trimmed);
    strip_punctuation(trimmed, plain);
    for (char *at = plain; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    out[0] = 0;
    for (char *word = strtok_r(plain, " \r\f\v", &rest); word;
         word = strtok_r(NULL, " \r\f\v", &rest))
        if (!is_article(word))
            put_word(out, &count, spelled(word));
}

double vqa_accuracy(const char *answer, const char *const *references, size_t count)
{
    char mine[VQA_ANSWER_MAX], other[VQA_ANSWER_MAX], first[VQA_ANSWER_MAX];
    bool agree = true;
    size_t same = 0;
    if (count == 0)
        return 0.0;
    trim(references[0], first);
    for (size_t i = 1; i < count; i++) {
        trim(references[i], other);
        agree &= strcmp(first, other) == 0;
    }
    if (agree)
        trim(answer, mine);
    else
        vqa_normalise(answer, mine);
    for (size_t i = 0; i < count; i++) {
        if (agree)
            trim(references[i], other);
        else
            vqa_normalise(references[i], other);
        same += strcasecmp(mine, other) == 0;
    }
    /* Leaving out an annotator who agrees leaves same - 1 of them, any other leaves same. */
    double without = same > 3 ? 1.0 : same ? (double)(same - 1) / 3.0 : 0.0;
    double with = same >= 3 ? 1.0 : (double)same / 3.0;
    return ((double)same * without + (double)(count - same) * with) / (double)count;
}
