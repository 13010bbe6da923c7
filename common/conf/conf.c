/* SPDX-License-Identifier: Apache-2.0 */
/* conf.c: fills struct conf from the defaults, then the YAML file, then the command line, so that
 * each of them overrides the one before. The rules between options are checked last. */
#include "common/conf/conf.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/conf/conf_table.h"
#include "common/base/file.h"
#include "common/conf/mistakes.h"
#include "common/conf/yaml.h"

static const char command_line[] = "command line";

/* Finds the option that the key or alias means, and puts the value into that option's spelling. */
static const conf_row *resolve_key(const char *key, const char **value)
{
    const conf_row *option = conf_row_find(key);
    if (option && strcmp(option->key, "compile.enable") == 0) { /* torchtitan has a switch */
        if (strcasecmp(*value, "true") == 0)
            *value = "step";
        else if (strcasecmp(*value, "false") == 0)
            *value = "off";
    }
    return option ? conf_row_target(option) : NULL;
}

typedef struct loading {
    conf *options;
    conf_origin origin;
    int64_t *set_at; /* [conf_n_rows] line that set the option, 0 = none so far */
    mistakes *wrong;
} loading;

static status set_item(loading *state, const yaml_item *item)
{
    const char *value = item->is_null ? "" : item->text;
    state->origin.line = item->line;
    if (item->is_null && conf_is_section(item->key))
        return ST_OK; /* an empty section, such as "eval:" alone */
    const conf_row *option = resolve_key(item->key, &value);
    if (!option)
        return conf_unknown_key(item->key, &state->origin);
    int64_t *before = &state->set_at[option - conf_rows];
    if (*before)
        return CONF_FAIL(&state->origin, "%s sets %s, which line %lld already sets", item->key,
                         option->key, (long long)*before);
    *before = item->line;
    if (item->is_list && option->kind != ROW_TEXT)
        return CONF_FAIL(&state->origin, "%s: expected one value, found a list", option->key);
    return conf_value_set(state->options, option, value, &state->origin);
}

static status set_from_file(void *user, const yaml_item *item)
{
    loading *state = (loading *)user;
    return mistakes_add(state->wrong, set_item(state, item));
}

/* A fault of one key, such as a second one of the same name, does not end the reading. */
static status fault_of_file(void *user, status st)
{
    return mistakes_add(((loading *)user)->wrong, st);
}

/* The absolute path of the folder that holds the file, with links resolved. */
static status folder_of(const char *file, char out[PATH_MAX])
{
    char copy[PATH_MAX];
    if (strlen(file) >= sizeof copy)
        return FAIL_IN(ST_NO_INPUT, file, "the path is longer than %d bytes", PATH_MAX - 1);
    strcpy(copy, file);
    if (!realpath(dirname(copy), out))
        return FAIL_IN(ST_NO_INPUT, file, "cannot find its folder: %s", strerror(errno));
    return ST_OK;
}

static status load_file(conf *options, const char *file, mistakes *wrong)
{
    char base[PATH_MAX];
    if (file_is_folder(file))
        return FAIL_IN(ST_USAGE, file, "is a folder; -c takes a YAML file");
    const size_t length = strlen(file);
    if (length > 5 && strcasecmp(file + length - 5, ".toml") == 0)
        return FAIL_IN(ST_USAGE, file,
                       "TOML is not read; deploy/from-torchtitan (installed: share/tessera) turns "
                       "torchtitan's TOML into YAML");
    loading state = {options, {file, -1, base, ST_CONFIG}, NULL, wrong};
    TRY(folder_of(file, base));
    void *lines;
    TRY(arena_calloc(&options->texts, conf_n_rows, sizeof *state.set_at, &lines));
    state.set_at = (int64_t *)lines;
    return yaml_read(file, set_from_file, fault_of_file, &state);
}

/* A relative default starts at the working directory. The exception is the endpoint, which starts
 * at the folder of the file, so that both programs meet wherever they are started. */
static status set_defaults(conf *options, const char *file, const char *here)
{
    char beside[PATH_MAX];
    if (file)
        TRY(folder_of(file, beside));
    for (size_t i = 0; i < conf_n_rows; i++) {
        const conf_row *option = &conf_rows[i];
        char text[CONF_TEXT_MAX];
        bool is_endpoint = option->kind == ROW_TEXT && option->text_kind == TEXT_ENDPOINT && file;
        conf_origin origin = {"options.def", -1, is_endpoint ? beside : here, ST_INTERNAL};
        if (!conf_row_is_option(option))
            continue;
        conf_default_text(option, text, sizeof text);
        TRY(conf_value_set(options, option, text, &origin));
    }
    return ST_OK;
}

static bool is_option_flag(const char *arg)
{
    const char *end = arg + strcspn(arg, "=");
    const char *dot = strchr(arg, '.');
    return strncmp(arg, "--", 2) == 0 && dot && dot < end && dot > arg + 2;
}

static bool is_file_flag(const char *arg)
{
    return strcmp(arg, "-c") == 0 || strcmp(arg, "--config") == 0;
}

/* Reads the flag argv[*at], and the next word if that is the flag's value. Leaves *at on the last
 * word that was read. */
static status set_from_flag(conf *options, int argc, char **argv, int *at, const char *here)
{
    conf_origin origin = {command_line, -1, here, ST_USAGE};
    char key[256];
    const char *arg = argv[*at] + 2, *equals = strchr(arg, '=');
    size_t length = equals ? (size_t)(equals - arg) : strlen(arg);
    if (length >= sizeof key)
        return FAIL_IN(ST_USAGE, command_line,
                       "an option's name is %zu bytes long; no option has such "
                       "a name",
                       length);
    memcpy(key, arg, length);
    key[length] = 0;
    const char *following = *at + 1 < argc ? argv[*at + 1] : NULL;
    const char *value = equals ? equals + 1 : following;
    const char *meant = value ? value : "";
    const conf_row *option = resolve_key(key, &meant);
    bool apart = !equals && following && strncmp(following, "--", 2) != 0;
    if (!option) {
        *at += apart;
        return conf_unknown_key(key, &origin);
    }
    if (option->kind == ROW_BOOL &&
        apart) /* in "--log.json serve", serve is not the flag's value */
        apart = conf_bool_parse(following, &(bool){false});
    if (!equals && !apart) {
        if (option->kind != ROW_BOOL)
            return FAIL_IN(ST_USAGE, command_line, "--%s needs a value", key);
        meant = "true";
    }
    *at += apart;
    return conf_value_set(options, option, meant, &origin);
}

static status find_file(int argc, char **argv, const char **out)
{
    *out = NULL;
    for (int i = 1; i < argc; i++) {
        if (!is_file_flag(argv[i]))
            continue;
        if (i + 1 == argc)
            return FAIL_IN(ST_USAGE, command_line, "%s needs a file", argv[i]);
        if (*out)
            return FAIL_IN(ST_USAGE, command_line,
                           "two configuration files are given, %s and %s; only one can be read",
                           *out, argv[i + 1]);
        *out = argv[++i];
    }
    return ST_OK;
}

/* Notes where the options come from, for errors about options that contradict each other and thus
 * have no line of their own. */
static status note_place(conf *options, const char *file, bool flags)
{
    char place[PATH_MAX + 32], *kept;
    snprintf(place, sizeof place, "%s%s%s", file ? file : "", file && flags ? " and the " : "",
             flags ? command_line : "");
    TRY(arena_strndup(&options->texts, place, strlen(place), &kept));
    options->place = kept;
    return ST_OK;
}

/* Sets every --section.key of the command line, and takes it, -c FILE and --shared out of argv. */
static status set_from_flags(conf *options, int *argc, char **argv, const char *here,
                             mistakes *wrong, bool *out_any)
{
    int left = *argc > 0 ? 1 : 0;
    *out_any = false;
    for (int i = 1; i < *argc; i++) {
        if (is_file_flag(argv[i]))
            i++;
        else if (is_option_flag(argv[i])) {
            TRY(mistakes_add(wrong, set_from_flag(options, *argc, argv, &i, here)));
            *out_any = true;
        } else if (strcmp(argv[i], CONF_SHARED) != 0)
            argv[left++] = argv[i];
    }
    if (left < *argc)
        argv[left] = NULL;
    *argc = left;
    return ST_OK;
}

static bool is_set(const conf *options, const char *key)
{
    char text[CONF_TEXT_MAX];
    conf_value_text(options, conf_row_find(key), text, sizeof text);
    return text[0] != 0;
}

static status check_needs(const conf *options, const conf_need *needs, status code, mistakes *wrong)
{
    for (const conf_need *need = needs; need && need->key; need++) {
        if (is_set(options, need->key) || (need->or_key && is_set(options, need->or_key)))
            continue;
        TRY(mistakes_add(wrong, FAIL_IN(code, conf_place(options), "%s is not set: %s", need->key,
                                        need->advice)));
    }
    return ST_OK;
}

static status load_options(conf *options, int *argc, char **argv, const conf_need *needs,
                           mistakes *wrong)
{
    char here[PATH_MAX];
    const char *file;
    bool flags;
    if (!getcwd(here, sizeof here))
        return FAIL(ST_OS, "the working directory: %s", strerror(errno));
    TRY(find_file(*argc, argv, &file));
    TRY(set_defaults(options, file, here));
    status read = file ? load_file(options, file, wrong) : ST_OK;
    TRY(mistakes_add(wrong, read));
    TRY(set_from_flags(options, argc, argv, here, wrong, &flags));
    TRY(note_place(options, file, flags));
    if (read == ST_OK) /* else what is missing may stand in the part that was not read */
        TRY(check_needs(options, needs, file ? ST_CONFIG : ST_USAGE, wrong));
    /* Rules between options say nothing true while one of them has a value it should not have. */
    return wrong->count > 0 ? ST_OK : conf_check_all(options, wrong);
}

status conf_load_all(conf *options, int *argc, char **argv, const conf_need *needs, mistakes *wrong)
{
    memset(options, 0, sizeof *options);
    arena_init(&options->texts, 0);
    options->place = "";
    status st = load_options(options, argc, argv, needs, wrong);
    if (st == ST_OK)
        st = mistakes_first(wrong);
    if (st != ST_OK)
        conf_done(options);
    return st;
}

status conf_load(conf *options, int *argc, char **argv)
{
    mistakes wrong = {0};
    status st = conf_load_all(options, argc, argv, NULL, &wrong);
    mistakes_done(&wrong);
    return st;
}

void conf_done(conf *options)
{
    if (!options)
        return;
    arena_done(&options->texts);
    memset(options, 0, sizeof *options);
}

bool conf_has(const char *key)
{
    return conf_row_find(key) != NULL;
}

status conf_set(conf *options, const char *key, const char *value)
{
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here))
        return FAIL(ST_OS, "the working directory: %s", strerror(errno));
    conf_origin origin = {command_line, -1, here, ST_USAGE};
    const conf_row *option = resolve_key(key, &value);
    if (!option)
        return conf_unknown_key(key, &origin);
    return conf_value_set(options, option, value, &origin);
}

status conf_copy(const conf *from, conf *to)
{
    *to = *from;
    arena_init(&to->texts, 0);
    char *kept;
    TRY(arena_strndup(&to->texts, from->place, strlen(from->place), &kept));
    to->place = kept;
    for (size_t i = 0; i < conf_n_rows; i++) {
        if (conf_rows[i].kind != ROW_TEXT)
            continue;
        const char **text = conf_text(to, &conf_rows[i]);
        TRY(arena_strndup(&to->texts, *text, strlen(*text), &kept));
        *text = kept;
    }
    return ST_OK;
}

status conf_eval(const conf *options, conf *out)
{
    conf expected;
    status st = conf_copy(options, &expected);
    if (st != ST_OK) {
        conf_done(&expected);
        return st;
    }
    if (*expected.eval_path)
        expected.data_path = expected.eval_path;
    expected.data_split = expected.eval_split;
    expected.data_limit = expected.eval_limit;
    expected.data_shuffle = false;
    expected.data_generation = 0;
    expected.data_answer = ANSWER_MAJORITY;
    expected.is_held_out = true;
    expected.training_epochs = 1;
    *out = expected;
    return ST_OK;
}
