/* SPDX-License-Identifier: Apache-2.0 */
/* conf_table.c: the rows of options.def and removed.def expanded into one array, and what can be
 * asked of a row: its key, choices, default and range. */
#include "common/conf/conf_table.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/words.h"

#define AT(field) offsetof(struct conf, field)

/* The verbs that read options, as bits, and the groups of them that options.def names. */
enum {
    SERVE = 1 << 0,
    CONSUMERS = 1 << 1, /* prepd check, sample, digest, record: their private daemon sends rows */
    PREPD_PLAN = 1 << 2,
    CONTROL = 1 << 3, /* of a running daemon */
    TRAIN = 1 << 4,
    EVAL = 1 << 5,
    VERIFY = 1 << 6,
    CHECK = 1 << 7,
    PLAN = 1 << 8,
    BENCH = 1 << 9,
    ROWS = SERVE | CONSUMERS | PREPD_PLAN,
    STEPS = TRAIN | VERIFY | CHECK | BENCH, /* they update a model */
    RUNS = STEPS | EVAL,                    /* they open a model and rows */
    MODEL = RUNS | PLAN
};

static const struct {
    const char *name;
    bool trainer;
    unsigned bit;
} verbs[] = {
    {"serve", false, SERVE},      {"check", false, CONSUMERS},  {"plan", false, PREPD_PLAN},
    {"sample", false, CONSUMERS}, {"digest", false, CONSUMERS}, {"record", false, CONSUMERS},
    {"status", false, CONTROL},   {"scale", false, CONTROL},    {"drain", false, CONTROL},
    {"admit", false, CONTROL},    {"train", true, TRAIN},       {"eval", true, EVAL},
    {"verify", true, VERIFY},     {"check", true, CHECK},       {"plan", true, PLAN},
    {"bench", true, BENCH},
};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

/* The members that the rows of all option kinds share. */
#define EVERY_ROW(section, word, who, flows, how, words)                                           \
    .key = #section "." #word, .offset = AT(section##_##word), .verbs = (who),                     \
    .flow = FLOW_##flows, .level = LEVEL_##how, .help = words

const conf_row conf_rows[] = {
#define OPTION_SECTION(name, words) {.kind = ROW_SECTION, .key = name, .help = words},
#define OPTION_ALIAS(alias, meant)  {.kind = ROW_ALIAS, .key = alias, .text = meant, .unit = ""},
#define OPTION_INT(section, word, def, min, max, what, who, flows, how, words)                     \
    {.kind = ROW_INT,                                                                              \
     EVERY_ROW(section, word, who, flows, how, words),                                             \
     .unit = what,                                                                                 \
     .integer = def,                                                                               \
     .integer_min = min,                                                                           \
     .integer_max = max},
#define OPTION_REAL(section, word, def, min, max, what, who, flows, how, words)                    \
    {.kind = ROW_REAL,                                                                             \
     EVERY_ROW(section, word, who, flows, how, words),                                             \
     .unit = what,                                                                                 \
     .real = def,                                                                                  \
     .real_min = min,                                                                              \
     .real_max = max},
#define OPTION_BOOL(section, word, def, who, flows, how, words)                                    \
    {.kind = ROW_BOOL, EVERY_ROW(section, word, who, flows, how, words), .unit = "", .yes = def},
#define OPTION_TEXT(section, word, def, what, who, flows, how, words)                              \
    {.kind = ROW_TEXT,                                                                             \
     EVERY_ROW(section, word, who, flows, how, words),                                             \
     .unit = "",                                                                                   \
     .text = def,                                                                                  \
     .text_kind = TEXT_##what},
#define CHOICE_TEXT(name, text) "|" text
#define OPTION_ENUM(section, word, def, who, flows, how, words)                                    \
    {.kind = ROW_ENUM,                                                                             \
     EVERY_ROW(section, word, who, flows, how, words),                                             \
     .unit = "",                                                                                   \
     .text = def,                                                                                  \
     .choices = &(CHOICES_##section##_##word(CHOICE_TEXT))[1]},
#include "common/conf/options.def"
#define OPTION_REMOVED(name, value, advice)                                                        \
    {.kind = ROW_REMOVED, .key = name, .text = value, .unit = "", .help = advice},
#include "common/conf/removed.def"
};

const size_t conf_n_rows = sizeof conf_rows / sizeof conf_rows[0];

bool conf_row_is_option(const conf_row *row)
{
    return row->kind >= ROW_INT;
}

const conf_row *conf_row_find(const char *key)
{
    for (size_t i = 0; i < conf_n_rows; i++)
        if (conf_rows[i].kind != ROW_SECTION && strcmp(conf_rows[i].key, key) == 0)
            return &conf_rows[i];
    return NULL;
}

const conf_row *conf_row_target(const conf_row *row)
{
    return row->kind == ROW_ALIAS ? conf_row_find(row->text) : row;
}

bool conf_is_section(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *option = &conf_rows[i];
        if (strncmp(option->key, name, length) == 0 &&
            (option->key[length] == '.' || option->kind == ROW_SECTION) &&
            (option->key[length] == '.' || option->key[length] == 0))
            return true;
    }
    return false;
}

const char *conf_first_key(const char *section)
{
    const size_t length = strlen(section);
    for (size_t i = 0; i < conf_n_rows; i++)
        if (strncmp(conf_rows[i].key, section, length) == 0 && conf_rows[i].key[length] == '.' &&
            conf_row_is_option(&conf_rows[i]))
            return conf_rows[i].key;
    return section;
}

bool conf_is_read(const conf_row *row, bool trainer, const char *verb)
{
    for (int i = 0; i < N_VERBS; i++)
        if (verbs[i].trainer == trainer && (!verb || strcmp(verbs[i].name, verb) == 0) &&
            (row->verbs & verbs[i].bit))
            return true;
    return false;
}

bool conf_is_taken(const conf_row *row, bool trainer, const char *verb)
{
    const conf_row compared = {.verbs = ROWS | RUNS};
    return conf_is_read(row, trainer, verb) ||
           (row->flow == FLOW_STREAM && conf_is_read(&compared, trainer, verb));
}

void conf_readers_text(const conf_row *row, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < N_VERBS; i++)
        if (row->verbs & verbs[i].bit)
            used = words_add(out, size, used, "%s%s %s", used ? ", " : "",
                             verbs[i].trainer ? "trainer" : "prepd", verbs[i].name);
}

int conf_choice_count(const conf_row *row)
{
    int count = 1;
    for (const char *at = row->choices; *at; at++)
        count += *at == '|';
    return count;
}

void conf_choice_name(const conf_row *row, int index, char *out, size_t size)
{
    const char *choices = row->choices;
    while (index-- > 0)
        choices = strchr(choices, '|') + 1;
    snprintf(out, size, "%.*s", (int)strcspn(choices, "|"), choices);
}

int conf_choice_find(const conf_row *row, const char *text)
{
    char name[64];
    for (int i = 0; i < conf_choice_count(row); i++) {
        conf_choice_name(row, i, name, sizeof name);
        if (strcasecmp(name, text) == 0)
            return i;
    }
    return -1;
}

/* The shortest text that strtod reads back as the same number. */
static void real_text(double value, char *out, size_t size)
{
    if (value == floor(value) && fabs(value) < 1e15) {
        snprintf(out, size, "%.0f", value); /* %g would write 30 as 3e+01 */
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

void conf_value_text(const conf *options, const conf_row *row, char *out, size_t size)
{
    const char *field = (const char *)options + row->offset;
    switch (row->kind) {
    case ROW_INT:
        snprintf(out, size, "%" PRId64, *(const int64_t *)(const void *)field);
        break;
    case ROW_REAL:
        real_text(*(const double *)(const void *)field, out, size);
        break;
    case ROW_BOOL:
        snprintf(out, size, "%s", *(const bool *)field ? "true" : "false");
        break;
    case ROW_TEXT:
        snprintf(out, size, "%s", *(const char *const *)(const void *)field);
        break;
    case ROW_ENUM:
        conf_choice_name(row, *(const int *)(const void *)field, out, size);
        break;
    default:
        out[0] = 0;
    }
}

void conf_default_text(const conf_row *row, char *out, size_t size)
{
    if (row->kind == ROW_INT)
        snprintf(out, size, "%" PRId64, row->integer);
    else if (row->kind == ROW_REAL)
        real_text(row->real, out, size);
    else if (row->kind == ROW_BOOL)
        snprintf(out, size, "%s", row->yes ? "true" : "false");
    else
        snprintf(out, size, "%s", row->text ? row->text : "");
}

void conf_range_text(const conf_row *row, char *out, size_t size)
{
    const char *space = row->unit && *row->unit ? " " : "";
    char low[40], high[40];
    if (row->kind == ROW_INT && row->integer_max == INT64_MAX) {
        snprintf(out, size, "at least %" PRId64 "%s%s", row->integer_min, space, row->unit);
    } else if (row->kind == ROW_INT) {
        snprintf(out, size, "%" PRId64 " to %" PRId64 "%s%s", row->integer_min, row->integer_max,
                 space, row->unit);
    } else if (row->kind == ROW_REAL) {
        real_text(row->real_min, low, sizeof low);
        real_text(row->real_max, high, sizeof high);
        snprintf(out, size, "%s to %s%s%s", low, high, space, row->unit);
    } else {
        out[0] = 0;
    }
}

/* Which key someone probably meant: the one with fewest edits, or else those that
 * end in the same word in another section. */

size_t conf_distance(const char *one, const char *other)
{
    enum { WIDTH = 128 }; /* longer than any key; the rest of a longer word is ignored */
    size_t rows = strnlen(one, WIDTH), columns = strnlen(other, WIDTH), row[WIDTH + 1];
    for (size_t j = 0; j <= columns; j++)
        row[j] = j;
    for (size_t i = 1; i <= rows; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            bool same = tolower((unsigned char)one[i - 1]) == tolower((unsigned char)other[j - 1]);
            size_t best = diagonal + !same;
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[columns];
}

bool conf_is_near(const char *word, size_t distance)
{
    enum { EDITS = 2, OF_LENGTH = 3 };
    const size_t share = strlen(word) / OF_LENGTH;
    return distance <= (share > EDITS ? share : EDITS);
}

const char *conf_nearest_key(const char *key)
{
    const char *nearest = NULL;
    size_t least = SIZE_MAX;
    bool whole = strchr(key, '.') != NULL;
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *option = &conf_rows[i];
        if (option->kind == ROW_SECTION || option->kind == ROW_REMOVED)
            continue;
        size_t distance = conf_distance(key, whole ? option->key : strchr(option->key, '.') + 1);
        if (distance < least) {
            least = distance;
            nearest = option->key;
        }
    }
    return conf_is_near(key, least) ? nearest : NULL;
}

/* Appends up to `most` keys that end in the word, and returns how many there are in all. */
static int same_last_word(const char *word, int most, char *out, size_t size)
{
    int found = 0;
    size_t used = 0;
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *option = &conf_rows[i];
        if (!conf_row_is_option(option) || strcasecmp(strrchr(option->key, '.') + 1, word) != 0)
            continue;
        if (found++ < most)
            used = words_add(out, size, used, "%s%s", used ? " or " : "", option->key);
    }
    return found;
}

bool conf_guess(const char *key, char *out, size_t size)
{
    enum { MOST = 3 }; /* more are no help */
    const char *near = conf_nearest_key(key), *last = strrchr(key, '.');
    if (near) {
        snprintf(out, size, "%s", near);
        return true;
    }
    const int found = same_last_word(last ? last + 1 : key, MOST, out, size);
    return found > 0 && found <= MOST;
}
