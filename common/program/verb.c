/* SPDX-License-Identifier: Apache-2.0 */
/* verb.c: see verb.h. */
#include "common/program/verb.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/conf/conf.h"
#include "common/conf/conf_table.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "common/program/verb_parts.h"

static status refuse_word(const char *name, const char *word)
{
    return FAIL(ST_USAGE,
                "%s: unexpected \"%.200s\": a value follows its --option, a YAML file follows -c; "
                "see %s %s --help",
                name, word, program_invocation_short_name, name);
}

/* Logs every mistake if there are several, and returns a failure that counts them. */
static status tell_mistakes(const mistakes *wrong, status st)
{
    if (wrong->count < 2)
        return st;
    for (int64_t i = 0; i < wrong->count && i < MISTAKES_KEPT; i++)
        log_error("%s", wrong->text[i]);
    if (wrong->count > MISTAKES_KEPT)
        log_error("and %lld more like these", (long long)wrong->count - MISTAKES_KEPT);
    return FAIL(st,
                "%lld mistakes in the options, so nothing was started; %s --reference lists "
                "all options",
                (long long)wrong->count, program_invocation_short_name);
}

static status load_and_tell(conf *options, int *argc, char **argv, const conf_need *needs,
                            bool last)
{
    mistakes wrong = {0};
    status st = conf_load_all(options, argc, argv, needs, &wrong);
    const bool loaded = st == ST_OK;
    for (int i = 1; last && i < *argc && (loaded || wrong.count > 0); i++)
        if (mistakes_add(&wrong, refuse_word(argv[0], argv[i])) != ST_OK)
            break;
    if (wrong.count > 0)
        st = tell_mistakes(&wrong, mistakes_first(&wrong));
    if (loaded && st != ST_OK) {
        status_note note = *status_last();
        conf_done(options);
        status_set(&note);
    }
    mistakes_done(&wrong);
    return st;
}

status verb_load(conf *options, int *argc, char **argv, const conf_need *needs)
{
    return load_and_tell(options, argc, argv, needs, false);
}

status verb_load_last(conf *options, int *argc, char **argv, const conf_need *needs)
{
    return load_and_tell(options, argc, argv, needs, true);
}

/* --print-config: prints the options that this command line results in, in a form that can be
 * loaded again. Its other words are ignored. */
static status print_config(int argc, char **argv)
{
    conf options;
    TRY(verb_load(&options, &argc, argv, NULL));
    conf_print(&options, stdout);
    conf_done(&options);
    return ST_OK;
}

/* Adds what is wrong with the options to the wrong words found already, and tells all of it. */
static status refuse_words(const verb *command, int argc, char **argv, mistakes *wrong)
{
    conf options;
    char **copy = calloc((size_t)argc + 1, sizeof *copy);
    status st = mistakes_first(wrong);
    if (copy && command->options) {
        memcpy(copy, argv, (size_t)argc * sizeof *copy);
        st = conf_load_all(&options, &argc, copy, NULL, wrong);
    }
    free(copy);
    return tell_mistakes(wrong, st);
}

static status run_verb(const program *self, const verb *command, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            help_of_verb(self, command, i + 1 < argc && strcmp(argv[i + 1], "all") == 0);
            return ST_OK;
        }
    mistakes wrong = {0};
    status st = verb_check_words(self, command, argc, argv, &wrong);
    if (st == ST_OK && wrong.count > 0)
        st = refuse_words(command, argc, argv, &wrong);
    mistakes_done(&wrong);
    TRY(st);
    if (command->options && verb_take_flag(&argc, argv, "--print-config"))
        return print_config(argc, argv);
    return command->run(argc, argv);
}

static status unknown_verb(const program *self, const char *name)
{
    const verb *best = &self->verbs[0];
    for (int i = 1; i < self->count; i++)
        if (conf_distance(name, self->verbs[i].name) < conf_distance(name, best->name))
            best = &self->verbs[i];
    if (!conf_is_near(name, conf_distance(name, best->name)))
        return FAIL(ST_USAGE, "there is no verb \"%.100s\"; %s --help lists all", name, self->name);
    return FAIL(ST_USAGE, "there is no verb \"%.100s\"; did you mean \"%s\"? %s --help lists all",
                name, best->name, self->name);
}

static status dispatch_verb(const program *self, int argc, char **argv)
{
    if (argc < 2) {
        help_of_program(self, stderr);
        return FAIL(ST_USAGE, "no verb is given");
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        help_of_program(self, stdout);
        return ST_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("%s %s\n", self->name, TESSERA_VERSION);
        return ST_OK;
    }
    if (strcmp(name, "--reference") == 0) {
        conf_reference(stdout);
        return ST_OK;
    }
    if (strcmp(name, "--man") == 0) {
        man_page(self, stdout);
        return ST_OK;
    }
    for (int i = 0; i < self->count; i++)
        if (strcmp(name, self->verbs[i].name) == 0)
            return run_verb(self, &self->verbs[i], argc - 1, argv + 1);
    return unknown_verb(self, name);
}

int program_run(const program *self, int argc, char **argv)
{
    log_init(self->name, LOG_INFO, false);
    status st = dispatch_verb(self, argc, argv);
    bar_clear();
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
    const size_t length = strlen(name);
    *out = NULL;
    for (int i = 1; i < *argc; i++) {
        int used = 0;
        if (strcmp(argv[i], name) == 0) {
            if (i + 1 >= *argc || strncmp(argv[i + 1], "--", 2) == 0)
                return FAIL(ST_USAGE, "%s needs a value", name);
            *out = argv[i + 1];
            used = 2;
        } else if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') {
            *out = argv[i] + length + 1;
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

bool verb_take_overwrite(int *argc, char **argv)
{
    return verb_take_flag(argc, argv, "--overwrite");
}

/* True for a folder with nothing in it. */
static bool is_empty_folder(const char *path)
{
    bool empty = true;
    DIR *dir = opendir(path);
    if (!dir)
        return false;
    for (struct dirent *entry; empty && (entry = readdir(dir));)
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    closedir(dir);
    return empty;
}

status verb_may_write(const char *path, bool overwrite)
{
    struct stat info;
    if (overwrite || lstat(path, &info) != 0 || is_empty_folder(path))
        return ST_OK;
    return FAIL_IN(ST_CANT_CREATE, path, "%s; name another place, or say --overwrite",
                   S_ISDIR(info.st_mode) ? "this folder is not empty" : "this exists already");
}

status verb_all_taken(int argc, char **argv)
{
    return argc < 2 ? ST_OK : refuse_word(argv[0], argv[1]);
}

status verb_number(const char *name, const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end, range[64];
    if (max == INT64_MAX)
        snprintf(range, sizeof range, "of at least %lld", (long long)min);
    else
        snprintf(range, sizeof range, "from %lld to %lld", (long long)min, (long long)max);
    if (!text)
        return FAIL(ST_USAGE, "%s is missing: give it a whole number %s", name, range);
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < min || value > max)
        return FAIL(ST_USAGE, "%s %.100s: expected a whole number %s", name, text, range);
    *out = value;
    return ST_OK;
}
