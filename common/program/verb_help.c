/* SPDX-License-Identifier: Apache-2.0 */
/* verb_help.c: what --help and --man print. Help fits a terminal of 80 columns. */
#include "common/program/verb_parts.h"

#include <ctype.h>
#include <string.h>

#include "common/conf/conf.h"
#include "common/conf/conf_table.h"

enum { WIDTH = 80 };

void help_of_program(const program *self, FILE *to)
{
    fprintf(to, "%s %s: %s\n\nusage: %s VERB ...\n\n", self->name, TESSERA_VERSION, self->purpose,
            self->name);
    for (int i = 0; i < self->count; i++)
        fprintf(to, "  %-12s %s\n", self->verbs[i].name, self->verbs[i].summary);
    fprintf(to,
            "\n"
            "  %s VERB --help                   usage of the verb and its options\n"
            "  %s VERB --help all               the same with the expert options\n"
            "  %s VERB -c FILE --print-config   every option with the value it has\n"
            "  %s --reference                   a page with every option and exit code\n"
            "  %s --man                         the manual page, which man -l - shows\n"
            "  %s --version\n\n"
            "Exit codes: 64 wrong command line, 65 bad data, 66 no such input, 69 no daemon\n"
            "or rank answers, 73 an output cannot be made, 75 stopped or timed out,\n"
            "78 wrong options in a file; for the others see --reference.\n",
            self->name, self->name, self->name, self->name, self->name, self->name);
}

/* The bytes up to the next blank that is not inside of brackets. */
static int item_length(const char *text)
{
    int depth = 0, count = 0;
    for (; text[count] && (depth > 0 || text[count] != ' '); count++)
        depth += text[count] == '[' ? 1 : text[count] == ']' ? -1 : 0;
    return count;
}

static void print_usage(const program *self, const verb *command)
{
    const int indent = printf("usage: %s %s", self->name, command->name);
    int column = indent;
    for (const char *at = command->usage; *at; at += strspn(at, " ")) {
        const int count = item_length(at);
        if (column + 1 + count > WIDTH && column > indent)
            column = printf("\n%*s", indent, "") - 1;
        column += printf(" %.*s", count, at);
        at += count;
    }
    printf("\n\n");
}

void help_of_verb(const program *self, const verb *command, bool all)
{
    print_usage(self, command);
    printf("%s\n", command->help);
    if (!command->options)
        return;
    printf("\n"
           "  -c FILE           reads options from a YAML file\n"
           "  --section.key V   sets one option, whatever the file says\n"
           "  " CONF_SHARED
           "          does not warn of options on the command line that only other\n"
           "                    verbs read, for scripts that give several the same ones\n"
           "  --print-config    prints every option with its value, and does nothing else\n\n");
    const int left_out = conf_help(stdout, self->trainer, command->name, command->most_used, all);
    if (left_out > 0)
        printf("\n%d more options, which few runs need: %s %s --help all\n", left_out, self->name,
               command->name);
}

/* Prints `count` bytes of a text. Words in backticks are bold; a dash is one that can be copied. */
static void put_bytes(FILE *to, const char *text, size_t count)
{
    bool bold = false;
    for (size_t i = 0; i < count; i++) {
        if (text[i] == '\\')
            fputs("\\e", to);
        else if (text[i] == '-')
            fputs("\\-", to);
        else if (text[i] == '`')
            fputs((bold = !bold) ? "\\fB" : "\\fR", to);
        else
            fputc(text[i], to);
    }
}

/* Prints a line of text. \& keeps a dot or an apostrophe at its start from being a request. */
static void put_line(FILE *to, const char *text, size_t count)
{
    fputs("\\&", to);
    put_bytes(to, text, count);
    fputc('\n', to);
}

static void put_text(FILE *to, const char *text)
{
    put_line(to, text, strlen(text));
}

/* The width of "  --word VALUE" at the start of a line that describes a word; 0 for other lines. */
static size_t tag_width(const char *line)
{
    if (strncmp(line, "  ", 2) != 0 || isspace((unsigned char)line[2]))
        return 0;
    const char *end = strstr(line + 2, "  ");
    return end ? (size_t)(end - line) : 0;
}

/* Prints a verb's help, which is folded for a terminal: its words become a list, and a line begins
 * a paragraph where it follows a whole sentence and begins with a word that is being explained. */
static void put_help(FILE *to, const char *help)
{
    bool in_list = false, ended = false;
    for (const char *line = help; *line;) {
        const size_t count = strcspn(line, "\n"), tag = tag_width(line);
        const bool deep = strncmp(line, "   ", 3) == 0;
        const size_t blanks = strspn(line, " ");
        if (tag && tag < count) {
            fputs(".TP\n\\fB", to);
            put_bytes(to, line + 2, tag - 2);
            fputs("\\fR\n", to);
            const size_t skip = tag + strspn(line + tag, " ");
            put_line(to, line + skip, count - skip);
        } else if (count > 0) {
            if (in_list ? !deep : ended && !isupper((unsigned char)*line))
                fputs(".PP\n", to);
            put_line(to, line + blanks, count - blanks);
        }
        in_list = (tag && tag < count) || (in_list && deep);
        ended = count == 0 || line[count - 1] == '.';
        line += count + (line[count] == '\n');
    }
}

static void put_verb(FILE *to, const program *self, const verb *command)
{
    fputs(".SS ", to);
    put_text(to, command->name);
    fputs(".PP\n\\fB", to);
    fprintf(to, "%s %s\\fR ", self->name, command->name);
    put_text(to, command->usage);
    fputs(".PP\n", to);
    put_help(to, command->help);
}

static void put_options(FILE *to, bool trainer)
{
    char words[CONF_TEXT_MAX + 512];
    const conf_row *section = NULL;
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *option = &conf_rows[i];
        if (option->kind == ROW_SECTION)
            section = option;
        if (!conf_row_is_option(option) || !conf_is_read(option, trainer, NULL))
            continue;
        if (section) {
            fprintf(to, ".SS %s\n", section->key);
            put_text(to, section->help);
        }
        section = NULL;
        fputs(".TP\n\\fB\\-\\-", to);
        put_bytes(to, option->key, strlen(option->key));
        fputs("\\fR ", to);
        put_text(to, conf_value_name(option));
        conf_row_words(option, words, sizeof words);
        put_text(to, words);
    }
}

static void put_exit_codes(FILE *to)
{
    char words[1024];
    for (size_t i = 0; i < conf_n_exit_rows; i++) {
        const conf_exit_row *row = &conf_exit_rows[i];
        fprintf(to, ".TP\n%d\n", status_exit_code(row->code));
        snprintf(words, sizeof words, "%s: %s.", status_meaning(row->code), row->mistakes);
        put_text(to, words);
    }
}

void man_page(const program *self, FILE *to)
{
    fputs(".TH ", to);
    for (const char *at = self->name; *at; at++)
        fputc(toupper((unsigned char)*at), to);
    fprintf(to,
            " 1 \"\" \"tessera %s\" \"User Commands\"\n.SH NAME\n%s \\- %s\n"
            ".SH SYNOPSIS\n\\fB%s\\fR \\fIVERB\\fR ...\n.PP\n\\fB%s\\fR \\fIVERB\\fR \\-\\-help\n"
            ".SH VERBS\n",
            TESSERA_VERSION, self->name, self->purpose, self->name, self->name);
    for (int i = 0; i < self->count; i++)
        put_verb(to, self, &self->verbs[i]);
    fputs(".SH OPTIONS\n", to);
    put_text(to, "A verb with -c FILE reads some of these options (VERB --help lists which) from "
                 "a YAML file and from the command line, which wins.");
    put_options(to, self->trainer);
    fputs(".SH EXIT STATUS\n", to);
    put_text(to, "0 is done, or stopped in order.");
    put_exit_codes(to);
    fprintf(to, ".SH SEE ALSO\n.BR %s (1),\n", self->trainer ? "prepd" : "trainer");
    put_text(to, "and the pages in share/doc/tessera");
}
