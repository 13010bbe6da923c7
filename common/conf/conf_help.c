/* conf_help.c: the options part of VERB --help, at most 80 columns wide. */
#include <stdio.h>
#include <string.h>

#include "common/conf/conf.h"
#include "common/conf/conf_table.h"

enum { HELP_INDENT = 6, HELP_WIDTH = 80 };

/* Prints the words in lines of at most HELP_WIDTH characters, each indented by `indent`. */
static void print_folded(FILE *to, const char *words, int indent)
{
    int column = 0;
    for (const char *at = words; *at;) {
        int count = (int)strcspn(at, " ");
        if (column > 0 && column + 1 + count > HELP_WIDTH) {
            fputc('\n', to);
            column = 0;
        }
        if (column == 0)
            column = fprintf(to, "%*s", indent, "");
        else
            column += fprintf(to, " ");
        column += fprintf(to, "%.*s", count, at);
        at += count;
        at += strspn(at, " ");
    }
    fputc('\n', to);
}

const char *conf_value_name(const conf_row *option)
{
    switch (option->kind) {
    case ROW_INT:
        return "N";
    case ROW_REAL:
        return "X";
    case ROW_BOOL:
        return "[true|false]";
    case ROW_ENUM:
        return option->choices;
    default:
        return option->text_kind == TEXT_PATH       ? "PATH"
               : option->text_kind == TEXT_ENDPOINT ? "URL"
                                                    : "TEXT";
    }
}

void conf_row_words(const conf_row *option, char *out, size_t size)
{
    char text[CONF_TEXT_MAX], range[128];
    conf_default_text(option, text, sizeof text);
    conf_range_text(option, range, sizeof range);
    snprintf(out, size, "%s Default: %.400s%s%s.", option->help, *text ? text : "empty",
             *range ? "; range: " : "", range);
}

static void help_row(FILE *to, const conf_row *option)
{
    char words[CONF_TEXT_MAX];
    fprintf(to, "  --%s %s%s\n", option->key, conf_value_name(option),
            option->level == LEVEL_EXPERT ? "   (expert)" : "");
    conf_row_words(option, words, sizeof words);
    print_folded(to, words, HELP_INDENT);
}

static bool is_among(const char *const *keys, const char *key)
{
    for (; keys && *keys; keys++)
        if (strcmp(*keys, key) == 0)
            return true;
    return false;
}

static void help_most_used(FILE *to, const char *const *keys)
{
    if (keys && *keys)
        fprintf(to, "\nMost used\n");
    for (; keys && *keys; keys++)
        help_row(to, conf_row_find(*keys));
}

int conf_help(FILE *to, bool trainer, const char *verb, const char *const *most_used, bool all)
{
    int left_out = 0;
    char heading[256] = "";
    fprintf(to, "In the file an option is written as \"section:\" and, indented below it,\n"
                "\"key: value\". Relative paths start at the file's folder; on the command line\n"
                "they start at the working directory.\n");
    help_most_used(to, most_used);
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *option = &conf_rows[i];
        if (option->kind == ROW_SECTION)
            snprintf(heading, sizeof heading, "%s: %s", option->key, option->help);
        if (!conf_row_is_option(option) || !conf_is_read(option, trainer, verb) ||
            is_among(most_used, option->key))
            continue;
        if (option->level == LEVEL_EXPERT && !all) {
            left_out++;
            continue;
        }
        if (heading[0]) {
            fputc('\n', to);
            print_folded(to, heading, 0);
        }
        heading[0] = 0;
        help_row(to, option);
    }
    return left_out;
}
