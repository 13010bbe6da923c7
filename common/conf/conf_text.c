/* conf_text.c: the option table as users read it: --print-config, the options part of --help, and
 * configs/README.md. */
#include "common/conf/conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf_table.h"
#include "common/json/json.h"

enum { HELP_INDENT = 6, HELP_WIDTH = 96 };

/* A JSON text is also a double-quoted YAML scalar. The exceptions are U+FEFF, U+FFFE and U+FFFF,
 * which YAML forbids and the JSON writer does not escape, so they are escaped here. */
static void print_quoted(FILE *to, const char *text)
{
    json_writer w;
    json_writer_init(&w);
    json_put_cstr(&w, text);
    for (const unsigned char *p = (const unsigned char *)(w.text ? w.text : "\"\""); *p; p++) {
        unsigned point = 0;
        if (p[0] >= 0xE0 && p[0] <= 0xEF) /* valid UTF-8: two bytes follow */
            point = (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
        if (point == 0xFEFF || point >= 0xFFFE) {
            fprintf(to, "\\u%04x", point);
            p += 2;
        } else {
            fputc(*p, to);
        }
    }
    json_writer_done(&w);
}

void conf_print(const conf *c, FILE *to)
{
    char text[CONF_TEXT_MAX];
    const char *between = "";
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *r = &conf_rows[i];
        if (r->kind == ROW_SECTION) {
            fprintf(to, "%s# %s: %s\n", between, r->key, r->help);
            between = "\n";
        }
        if (!conf_row_is_option(r))
            continue;
        conf_value_text(c, r, text, sizeof text);
        if (r->kind != ROW_TEXT) {
            fprintf(to, "%s: %s\n", r->key, text);
            continue;
        }
        fprintf(to, "%s: ", r->key);
        print_quoted(to, text);
        fputc('\n', to);
    }
}

/* Prints the words in lines of at most HELP_WIDTH characters, each indented by HELP_INDENT. */
static void print_folded(FILE *to, const char *words)
{
    int column = 0;
    for (const char *p = words; *p;) {
        int n = (int)strcspn(p, " ");
        if (column > 0 && column + 1 + n > HELP_WIDTH) {
            fputc('\n', to);
            column = 0;
        }
        if (column == 0)
            column = fprintf(to, "%*s", HELP_INDENT, "");
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
    print_folded(to, words);
}

static bool is_among(const char *const *keys, const char *key)
{
    for (; *keys; keys++)
        if (strcmp(*keys, key) == 0)
            return true;
    return false;
}

int conf_help(FILE *to, bool for_trainer, const char *const *only, bool all)
{
    int left_out = 0;
    const conf_row *section = NULL;
    row_owner other = for_trainer ? OWNER_PREPD : OWNER_TRAINER;
    fprintf(to,
            "Options are set in the YAML file of -c (section: / key: value) or on the command "
            "line\n(--section.key VALUE), which wins over the file. Relative paths start at the "
            "file's folder,\non the command line at the working directory.\n");
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *r = &conf_rows[i];
        if (r->kind == ROW_SECTION)
            section = r;
        if (!conf_row_is_option(r) || r->owner == other || (only && !is_among(only, r->key)))
            continue;
        if (r->level == LEVEL_EXPERT && !all && !only) {
            left_out++;
            continue;
        }
        if (section)
            fprintf(to, "\n%s: %s\n", section->key, section->help);
        section = NULL;
        help_row(to, r);
    }
    return left_out;
}

/* Prints a text into a table cell of Markdown, where | would end the cell and < begin a tag. */
static void cell(FILE *to, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '|')
            fputs("\\|", to);
        else if (*p == '<')
            fputs("&lt;", to);
        else
            fputc(*p, to);
    }
}

static void reference_type(FILE *to, const conf_row *r)
{
    char name[64], range[128];
    switch (r->kind) {
    case ROW_INT:
    case ROW_REAL:
        conf_range_text(r, range, sizeof range);
        fprintf(to, "%s, %s", r->kind == ROW_INT ? "integer" : "number", range);
        break;
    case ROW_BOOL:
        fputs("true or false", to);
        break;
    case ROW_ENUM:
        for (int i = 0; i < conf_choice_count(r); i++) {
            conf_choice_name(r, i, name, sizeof name);
            fprintf(to, "%s`%s`", i ? ", " : "", name);
        }
        break;
    default:
        fputs(r->text_kind == TEXT_PATH       ? "path"
              : r->text_kind == TEXT_ENDPOINT ? "endpoint"
                                              : "text",
              to);
    }
}

static void reference_row(FILE *to, const conf_row *r)
{
    static const char *const owners[] = {"prepd", "trainer", "both"};
    char text[CONF_TEXT_MAX];
    conf_default_text(r, text, sizeof text);
    fprintf(to, "| `%s` | ", r->key);
    reference_type(to, r);
    fprintf(to, " | %s%s%s | %s | %s | %s | ", *text ? "`" : "", *text ? text : "empty",
            *text ? "`" : "", owners[r->owner], r->flow == FLOW_STREAM ? "yes" : "",
            r->level == LEVEL_EXPERT ? "expert" : "");
    cell(to, r->help);
    fputs(" |\n", to);
}

void conf_reference(FILE *to)
{
    fprintf(
        to,
        "# Options\n\n"
        "<!-- Made from common/conf/options.def by `prepd --reference`. Do not edit. -->\n\n"
        "`prepd` and `trainer` read the same YAML file, and each checks all of it.\n\n"
        "* **In the file** a key is written inside its section (`training:`, below it\n"
        "  `seq_len: 2048`) or with a dot (`training.seq_len: 2048`).\n"
        "* **On the command line** it is `--training.seq_len 2048` or\n"
        "  `--training.seq_len=2048`, and wins over the file.\n"
        "* **Relative paths** start at the file's folder; on the command line they start at the\n"
        "  working directory.\n"
        "* **Values:** whole numbers can be written `1e6` or `1_000_000`, numbers of bytes with\n"
        "  a unit (`8GiB`; also `KiB`, `MiB`, `TiB`), and `true` and `false` as `yes`, `no`,\n"
        "  `on`, `off`, `1` or `0`.\n"
        "* **Mistakes:** a key that does not exist is refused, and the message names a similar\n"
        "  key if there is one.\n"
        "* **`--print-config`** prints every option with the value that a run would use, in a\n"
        "  form that can be loaded again.\n\n"
        "*Stream* options change the rows that prepd makes. The trainer and prepd compare them\n"
        "when they connect, and a run can only be resumed with the same values. *Expert* options\n"
        "have a default that serves nearly every run; `VERB --help` lists them only with\n"
        "`--all`.\n");
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *r = &conf_rows[i];
        if (r->kind == ROW_SECTION)
            fprintf(to,
                    "\n## %s\n\n%c%s.\n\n"
                    "| key | value | default | read by | stream | level | meaning |\n"
                    "|---|---|---|---|---|---|---|\n",
                    r->key, r->help[0] >= 'a' && r->help[0] <= 'z' ? r->help[0] - 32 : r->help[0],
                    r->help + 1);
        else if (conf_row_is_option(r))
            reference_row(to, r);
    }
    fputs("\n## Other spellings\n\nThese keys are accepted too, so that torchtitan's spelling can "
          "be kept. Values that are one of\na list can be written in any case of letters.\n\n"
          "| written | means |\n|---|---|\n",
          to);
    for (size_t i = 0; i < conf_n_rows; i++)
        if (conf_rows[i].kind == ROW_ALIAS)
            fprintf(to, "| `%s` | `%s` |\n", conf_rows[i].key, conf_rows[i].text);
    fputs("\n## Removed\n\nThese options no longer exist. The one value that each of them had is "
          "still accepted and\nchanges nothing; leave it out.\n\n"
          "| written | value | why |\n|---|---|---|\n",
          to);
    for (size_t i = 0; i < conf_n_rows; i++)
        if (conf_rows[i].kind == ROW_REMOVED)
            fprintf(to, "| `%s` | `%s` | %s |\n", conf_rows[i].key, conf_rows[i].text,
                    conf_rows[i].help);
}
