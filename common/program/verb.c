/* verb.c: see verb.h. Every --word of a command line is either named in the verb's usage or help,
 * or is the key of an option (it contains a dot), or is refused before the verb runs. */
#include "common/program/verb.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf/conf.h"
#include "common/conf/conf_table.h"
#include "common/program/log.h"

enum { WORD_MAX = 64 };

static void help_all(const program *p, FILE *to)
{
    fprintf(to, "%s %s: %s\n\nusage: %s VERB ...\n\n", p->name, TESSERA_VERSION, p->purpose,
            p->name);
    for (int i = 0; i < p->n; i++)
        fprintf(to, "  %-9s %s\n", p->verbs[i].name, p->verbs[i].summary);
    fprintf(
        to,
        "\n  %s VERB --help                    the verb's usage and options; with --all also the "
        "expert options\n"
        "  %s VERB -c FILE --print-config    every option with the value it would have\n"
        "  %s --reference                    every option of both programs, as a Markdown page\n"
        "  %s --version\n\n"
        "Exit codes follow sysexits.h: 64 wrong command line, 65 bad data, 66 input not found, "
        "78 bad configuration, ..\n",
        p->name, p->name, p->name, p->name);
}

static void help_verb(const program *p, const verb *v, bool all)
{
    printf("usage: %s %s %s\n\n%s\n", p->name, v->name, v->usage, v->help);
    if (!v->options)
        return;
    printf("\n  -c FILE           read options from a YAML file\n"
           "  --section.key V   set one option, overriding the file\n"
           "  --print-config    print every option with its value, and do nothing else\n\n");
    const int left_out = conf_help(stdout, p->trainer, v->reads, all);
    if (left_out > 0)
        printf("\n%d more options, which few runs need, are listed by: %s %s --help --all\n",
               left_out, p->name, v->name);
}

static status unknown_verb(const program *p, const char *name)
{
    const verb *best = &p->verbs[0];
    for (int i = 1; i < p->n; i++)
        if (conf_distance(name, p->verbs[i].name) < conf_distance(name, best->name))
            best = &p->verbs[i];
    if (!conf_is_near(name, conf_distance(name, best->name)))
        return FAIL(ST_USAGE, "there is no verb \"%.100s\"; %s --help lists all", name, p->name);
    return FAIL(ST_USAGE, "there is no verb \"%.100s\"; did you mean \"%s\"? %s --help lists all",
                name, best->name, p->name);
}

/* Copies the next --word of *text and moves *text past it; false if there is none. Keys of options
 * (--model.path) are passed over. */
static bool next_word(const char **text, char out[WORD_MAX])
{
    const char *at = *text;
    size_t n = 0;
    do {
        at = at ? strstr(at + n, "--") : NULL;
        if (!at)
            return false;
        for (n = 2; n < WORD_MAX - 1 && (isalnum((unsigned char)at[n]) || at[n] == '-');)
            n++;
    } while (at[n] == '.' && isalpha((unsigned char)at[n + 1]));
    memcpy(out, at, n);
    out[n] = 0;
    *text = at + n;
    return true;
}

/* Copies the verb's word that is nearest to this one and returns its distance: 0 for the word
 * itself, 1 for its letters in another case, more for each edit. */
static size_t nearest_word(const verb *v, const char *word, char out[WORD_MAX])
{
    const char *const texts[] = {v->usage, v->help, v->hidden,
                                 v->options ? "--config --print-config --help" : "--help"};
    char one[WORD_MAX];
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (const char *text = texts[i]; next_word(&text, one);) {
            const size_t d = strcmp(one, word) == 0 ? 0 : 1 + conf_distance(one, word);
            if (d >= least)
                continue;
            least = d;
            memcpy(out, one, WORD_MAX);
        }
    return least;
}

static status unknown_word(const program *p, const verb *v, const char *word, const char *near,
                           size_t distance)
{
    if (v->options && conf_is_section(word + 2))
        return FAIL(
            ST_USAGE,
            "%s is a section of the options: write %s.KEY VALUE; %s %s --help lists the keys", word,
            word, p->name, v->name);
    const char *key = v->options ? conf_nearest_key(word + 2) : NULL;
    char guess[256] = "";
    if (conf_is_near(word + 2, distance - 1))
        snprintf(guess, sizeof guess, " did you mean %s?", near);
    else if (key)
        snprintf(guess, sizeof guess, " did you mean --%s?", key);
    return FAIL(ST_USAGE, "%s %s does not know %s;%s %s %s --help lists what it accepts", p->name,
                v->name, word, guess, p->name, v->name);
}

/* A word after a switch that is neither true nor false is left for the verb to read. Most verbs
 * accept no such word, and then the message should say what was probably meant. */
static status check_switch(const program *p, const verb *v, const char *flag, const char *next)
{
    const conf_row *r = conf_row_find(flag + 2);
    if (!r || conf_row_target(r)->kind != ROW_BOOL || !next || *next == '-' ||
        conf_bool_parse(next, &(bool){false}) || (*v->usage != '-' && *v->usage != '['))
        return ST_OK;
    return FAIL(ST_USAGE,
                "\"%.100s\" after %s is neither true nor false, and %s %s accepts no such word",
                next, flag, p->name, v->name);
}

/* Refuses a --word that is neither one of the verb's nor, if the verb reads options, an option. */
static status check_words(const program *p, const verb *v, int argc, char **argv)
{
    char word[WORD_MAX], near[WORD_MAX] = "";
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0)
            continue;
        snprintf(word, sizeof word, "%.*s", (int)strcspn(argv[i], "="), argv[i]);
        if (strchr(word, '.')) {
            if (!v->options)
                return FAIL(ST_USAGE,
                            "%s %s does not read the options of a YAML file, such as %s; see %s "
                            "%s --help",
                            p->name, v->name, word, p->name, v->name);
            TRY(check_switch(p, v, argv[i], argv[i + 1]));
            continue;
        }
        const size_t distance = nearest_word(v, word, near);
        if (distance)
            return unknown_word(p, v, word, near, distance);
    }
    return ST_OK;
}

static bool asks(int argc, char **argv, const char *flag)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], flag) == 0)
            return true;
    return false;
}

/* --print-config: prints the options that this command line results in, in a form that can be
 * loaded again. Its other words are ignored. */
static status print_config(int argc, char **argv)
{
    conf c;
    TRY(conf_load(&c, &argc, argv));
    conf_print(&c, stdout);
    conf_done(&c);
    return ST_OK;
}

static status run_verb(const program *p, const verb *v, int argc, char **argv)
{
    if (asks(argc, argv, "--help") || asks(argc, argv, "-h")) {
        help_verb(p, v, asks(argc, argv, "--all"));
        return ST_OK;
    }
    TRY(check_words(p, v, argc, argv));
    if (v->options && verb_take_flag(&argc, argv, "--print-config"))
        return print_config(argc, argv);
    return v->run(argc, argv);
}

static status dispatch_verb(const program *p, int argc, char **argv)
{
    if (argc < 2) {
        help_all(p, stderr);
        return FAIL(ST_USAGE, "no verb is given");
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help_all(p, stdout);
        return ST_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("%s %s\n", p->name, TESSERA_VERSION);
        return ST_OK;
    }
    if (strcmp(name, "--reference") == 0) {
        conf_reference(stdout);
        return ST_OK;
    }
    for (int i = 0; i < p->n; i++)
        if (strcmp(name, p->verbs[i].name) == 0)
            return run_verb(p, &p->verbs[i], argc - 1, argv + 1);
    return unknown_verb(p, name);
}

int program_run(const program *p, int argc, char **argv)
{
    log_init(p->name, LOG_INFO, false);
    status st = dispatch_verb(p, argc, argv);
    if (st != ST_OK && st != ST_END && status_last()->message[0]) /* else a child has logged it */
        log_status();
    const int failed = fflush(stdout) == 0 ? 0 : errno;
    const bool kept = !failed && !ferror(stdout);
    if (!kept && (st == ST_OK || st == ST_END)) { /* success needs output that arrived */
        st = FAIL(ST_IO, "standard output: a write failed%s%s", failed ? ": " : "",
                  failed ? strerror(failed) : "");
        log_status();
    }
    return status_exit_code(st);
}

status verb_take(int *argc, char **argv, const char *name, const char **out)
{
    const size_t n = strlen(name);
    *out = NULL;
    for (int i = 1; i < *argc; i++) {
        int used = 0;
        if (strcmp(argv[i], name) == 0) {
            if (i + 1 >= *argc || strncmp(argv[i + 1], "--", 2) == 0)
                return FAIL(ST_USAGE, "%s needs a value", name);
            *out = argv[i + 1];
            used = 2;
        } else if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=') {
            *out = argv[i] + n + 1;
            used = 1;
        }
        if (!used)
            continue;
        memmove(argv + i, argv + i + used, (size_t)(*argc - i - used + 1) * sizeof(*argv));
        *argc -= used;
        i--;
    }
    return ST_OK;
}

bool verb_take_flag(int *argc, char **argv, const char *name)
{
    bool found = false;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], name) != 0)
            continue;
        memmove(argv + i, argv + i + 1, (size_t)(*argc - i) * sizeof(*argv));
        (*argc)--;
        i--;
        found = true;
    }
    return found;
}

status verb_all_taken(int argc, char **argv)
{
    if (argc < 2)
        return ST_OK;
    return FAIL(ST_USAGE, "%s: unexpected \"%.200s\"; see %s %s --help", argv[0], argv[1],
                program_invocation_short_name, argv[0]);
}

status verb_number(const char *name, const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end, range[64];
    if (!text)
        return FAIL(ST_USAGE, "%s is missing", name);
    if (max == INT64_MAX)
        snprintf(range, sizeof range, "of at least %lld", (long long)min);
    else
        snprintf(range, sizeof range, "from %lld to %lld", (long long)min, (long long)max);
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || end == text || *end || v < min || v > max)
        return FAIL(ST_USAGE, "%s %.100s: expected a whole number %s", name, text, range);
    *out = v;
    return ST_OK;
}
