/* SPDX-License-Identifier: Apache-2.0 */
/* conf_print.c: the option table as people read it: --print-config, VERB --help, which is at most 80
 * columns wide, and configs/README.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "common/conf/conf_table.h"
#include "common/json/json.h"

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

/* The option table as users read it: --print-config and configs/README.md. */

/* A JSON text is also a double-quoted YAML scalar. The exceptions are U+FEFF, U+FFFE and U+FFFF,
 * which YAML forbids and the JSON writer does not escape, so they are escaped here. */
static void print_quoted(FILE *to, const char *text)
{
    json_writer writer;
    json_writer_init(&writer);
    json_put_cstr(&writer, text);
    for (const unsigned char *at = (const unsigned char *)(writer.text ? writer.text : "\"\""); *at;
         at++) {
        unsigned point = 0;
        if (at[0] >= 0xE0 && at[0] <= 0xEF) /* valid UTF-8: two bytes follow */
            point = (at[0] & 15u) << 12 | (at[1] & 63u) << 6 | (at[2] & 63u);
        if (point == 0xFEFF || point >= 0xFFFE) {
            fprintf(to, "\\u%04x", point);
            at += 2;
        } else {
            fputc(*at, to);
        }
    }
    json_writer_done(&writer);
}

void conf_print(const conf *options, FILE *to)
{
    char text[CONF_TEXT_MAX];
    const char *between = "";
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *option = &conf_rows[i];
        if (option->kind == ROW_SECTION) {
            fprintf(to, "%s# %s: %s\n", between, option->key, option->help);
            between = "\n";
        }
        if (!conf_row_is_option(option))
            continue;
        conf_value_text(options, option, text, sizeof text);
        if (option->kind != ROW_TEXT) {
            fprintf(to, "%s: %s\n", option->key, text);
            continue;
        }
        fprintf(to, "%s: ", option->key);
        print_quoted(to, text);
        fputc('\n', to);
    }
}

/* Prints a text into a table cell of Markdown, where | would end the cell and < begin a tag. */
static void cell(FILE *to, const char *text)
{
    for (const char *at = text; *at; at++) {
        if (*at == '|')
            fputs("\\|", to);
        else if (*at == '<')
            fputs("&lt;", to);
        else
            fputc(*at, to);
    }
}

static void reference_type(FILE *to, const conf_row *option)
{
    char name[64], range[128];
    switch (option->kind) {
    case ROW_INT:
    case ROW_REAL:
        conf_range_text(option, range, sizeof range);
        fprintf(to, "%s, %s", option->kind == ROW_INT ? "integer" : "number", range);
        break;
    case ROW_BOOL:
        fputs("true or false", to);
        break;
    case ROW_ENUM:
        for (int i = 0; i < conf_choice_count(option); i++) {
            conf_choice_name(option, i, name, sizeof name);
            fprintf(to, "%s`%s`", i ? ", " : "", name);
        }
        break;
    default:
        fputs(option->text_kind == TEXT_PATH       ? "path"
              : option->text_kind == TEXT_ENDPOINT ? "endpoint"
                                                   : "text",
              to);
    }
}

static void reference_row(FILE *to, const conf_row *option)
{
    const bool prepd = conf_is_read(option, false, NULL),
               trainer = conf_is_read(option, true, NULL);
    char text[CONF_TEXT_MAX];
    conf_default_text(option, text, sizeof text);
    fprintf(to, "| `%s` | ", option->key);
    reference_type(to, option);
    fprintf(to, " | %s%s%s | %s | %s | %s | ", *text ? "`" : "", *text ? text : "empty",
            *text ? "`" : "",
            prepd && trainer ? "both"
            : prepd          ? "prepd"
                             : "trainer",
            option->flow == FLOW_STREAM ? "yes" : "",
            option->level == LEVEL_EXPERT ? "expert" : "");
    cell(to, option->help);
    fputs(" |\n", to);
}

/* What each exit code means, and the mistakes that end with it; tests/flow/exit_codes.py makes
 * them. */
const conf_exit_row conf_exit_rows[] = {
    {ST_USAGE, "an unknown verb, word or option on the command line, or a wrong value; an "
               "option of the other program; a folder as the file of `-c`; `model.path` or "
               "`data.path` set nowhere, without a file"},
    {ST_BAD_INPUT, "a file that is damaged or not of its kind; bad samples in `prepd check`; a "
                   "difference in `trainer verify` or `check`"},
    {ST_NO_INPUT, "a configuration, a model, data, weights, a recording, keys or a file of "
                  "rates that is not there or cannot be opened"},
    {ST_UNAVAILABLE, "no daemon at `prepd.endpoint`; a port in use; a rank that is lost; a "
                     "worker that differs from the daemon; a device that fails"},
    {ST_INTERNAL, "none: a defect of the program"},
    {ST_OS, "the operating system refuses a call; no memory"},
    {ST_CANT_CREATE, "a file or folder to write whose place does not exist or may not be "
                     "written to"},
    {ST_IO, "a disk that is full or fails; standard output that cannot be written"},
    {ST_TIMEOUT, "a run that is given up after `checkpoint.exit_deadline`, or stopped before "
                 "it was done"},
    {ST_PROTOCOL, "a peer of another version, or not of this project"},
    {ST_CONFIG, "an unknown key or a wrong value in the file; a file that is not YAML; options "
                "that contradict each other, or do not fit the model or the daemon; "
                "`model.path` or `data.path` not set in the file"},
};
const size_t conf_n_exit_rows = sizeof conf_exit_rows / sizeof *conf_exit_rows;

static void reference_codes(FILE *to)
{
    fputs("\n## Exit codes\n\nThe same mistake has the same code in both programs. The codes are "
          "those of sysexits.h; 0 is done, or\nstopped in order. Several mistakes in the options "
          "end with the code of the first.\n\n"
          "| code | means | for example |\n|---|---|---|\n",
          to);
    for (size_t i = 0; i < conf_n_exit_rows; i++)
        fprintf(to, "| %d | %s | %s |\n", status_exit_code(conf_exit_rows[i].code),
                status_meaning(conf_exit_rows[i].code), conf_exit_rows[i].mistakes);
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
        "* **Mistakes** are reported all at once, each with its line: keys that do not exist, with "
        "a\n"
        "  similar one if there is any, wrong values, and what is missing. An option on the\n"
        "  command line that only other verbs or the other program read is warned of;\n"
        "  `--shared` says that it is meant, for scripts that give several the same options.\n"
        "* **`--print-config`** prints every option with the value that a run would use, in a\n"
        "  form that can be loaded again.\n\n"
        "*Stream* options change the rows that prepd makes. The trainer and prepd compare them\n"
        "when they connect, and a run can only be resumed with the same values. *Expert* options\n"
        "have a default that serves nearly every run; `VERB --help all`\n"
        "lists them.\n");
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *option = &conf_rows[i];
        if (option->kind == ROW_SECTION)
            fprintf(to,
                    "\n## %s\n\n%c%s.\n\n"
                    "| key | value | default | read by | stream | level | meaning |\n"
                    "|---|---|---|---|---|---|---|\n",
                    option->key,
                    option->help[0] >= 'a' && option->help[0] <= 'z' ? option->help[0] - 32
                                                                     : option->help[0],
                    option->help + 1);
        else if (conf_row_is_option(option))
            reference_row(to, option);
    }
    fputs("\n## Other spellings\n\nThese keys are accepted too, so that torchtitan's spelling can "
          "be kept. Values that are one of\na list can be written in any case of letters. "
          "[other-trainers.md](other-trainers.md) lists the keys of\nother trainers, and what "
          "becomes of them here.\n\n"
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
    reference_codes(to);
}
