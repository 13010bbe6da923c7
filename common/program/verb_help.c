/* verb_help.c: see verb_help.h. Everything fits a terminal of 80 columns. */
#include "common/program/verb_help.h"

#include <string.h>

#include "common/conf/conf.h"

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
            "  %s --other-trainers              a page with the keys of other trainers\n"
            "  %s --man                         the manual page, which man -l - shows\n"
            "  %s --version\n\n"
            "Exit codes: 64 wrong command line, 65 bad data, 66 no such input, 69 no daemon\n"
            "or rank answers, 73 an output cannot be made, 75 stopped or timed out,\n"
            "78 wrong options in a file; the others stand in the reference.\n",
            self->name, self->name, self->name, self->name, self->name, self->name, self->name);
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
