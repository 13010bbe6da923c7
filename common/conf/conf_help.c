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
    for (const char *p = words; *p;) {
        int n = (int)strcspn(p, " ");
        if (column > 0 && column + 1 + n > HELP_WIDTH) {
            fputc('\n', to);
            column = 0;
        }
        if (column == 0)
            column = fprintf(to, "%*s", indent, "");
        else
            column += fprintf(to, " ");
        column += fprintf(to, "%.*s", n, p);
        p += n;
        p += strspn(p, " ");
    }
    fputc('\n', to);
}

static const char *value_name(const conf_row *r)
{
    switch (r->kind) {
    case ROW_INT:
        return "N";
    case ROW_REAL:
        return "X";
    case ROW_BOOL:
        return "[true|false]";
    case ROW_ENUM:
        return r->choices;
    default:
        return r->text_kind == TEXT_PATH ? "PATH" : r->text_kind == TEXT_ENDPOINT ? "URL" : "TEXT";
    }
}

static void help_row(FILE *to, const conf_row *r)
{
    char text[CONF_TEXT_MAX], range[128], words[CONF_TEXT_MAX];
    conf_default_text(r, text, sizeof text);
    conf_range_text(r, range, sizeof range);
    fprintf(to, "  --%s %s%s\n", r->key, value_name(r),
            r->level == LEVEL_EXPERT ? "   (expert)" : "");
    snprintf(words, sizeof words, "%s Default: %.400s%s%s.", r->help, *text ? text : "empty",
             *range ? "; range: " : "", range);
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
        const conf_row *r = &conf_rows[i];
        if (r->kind == ROW_SECTION)
            snprintf(heading, sizeof heading, "%s: %s", r->key, r->help);
        if (!conf_row_is_option(r) || !conf_is_read(r, trainer, verb) ||
            is_among(most_used, r->key))
            continue;
        if (r->level == LEVEL_EXPERT && !all) {
            left_out++;
            continue;
        }
        if (heading[0]) {
            fputc('\n', to);
            print_folded(to, heading, 0);
        }
        heading[0] = 0;
        help_row(to, r);
    }
    return left_out;
}
