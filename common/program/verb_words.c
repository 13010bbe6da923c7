/* SPDX-License-Identifier: Apache-2.0 */
/* verb_words.c: the words of a command line that begin with --. Each is named in the verb's usage
 * or help, or is the key of an option that the verb takes (it contains a dot), or is a mistake. */
#include "common/program/verb_parts.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/conf/conf.h"
#include "common/conf/conf_table.h"
#include "common/program/log.h"

enum { WORD_MAX = 64 };

/* Copies the next --word of *text and moves *text past it; false if there is none. Keys of options
 * (--model.path) are passed over. */
static bool next_word(const char **text, char out[WORD_MAX])
{
    const char *at = *text;
    size_t count = 0;
    do {
        at = at ? strstr(at + count, "--") : NULL;
        if (!at)
            return false;
        for (count = 2;
             count < WORD_MAX - 1 && (isalnum((unsigned char)at[count]) || at[count] == '-');)
            count++;
    } while (at[count] == '.' && isalpha((unsigned char)at[count + 1]));
    memcpy(out, at, count);
    out[count] = 0;
    *text = at + count;
    return true;
}

/* Copies the verb's word that is nearest to this one and returns its distance: 0 for the word
 * itself, 1 for its letters in another case, more for each edit. */
static size_t nearest_word(const verb *command, const char *word, char out[WORD_MAX])
{
    const char *const texts[] = {command->usage, command->help, command->hidden,
                                 command->options ? "--config --print-config --help " CONF_SHARED
                                                  : "--help"};
    char one[WORD_MAX];
    size_t least = SIZE_MAX;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (const char *text = texts[i]; next_word(&text, one);) {
            const size_t distance = strcmp(one, word) == 0 ? 0 : 1 + conf_distance(one, word);
            if (distance >= least)
                continue;
            least = distance;
            memcpy(out, one, WORD_MAX);
        }
    return least;
}

static status unknown_word(const program *self, const verb *command, const char *word,
                           const char *near, size_t distance)
{
    if (command->options && conf_is_section(word + 2))
        return FAIL(
            ST_USAGE,
            "%s is a section of the options: write %s.KEY VALUE; %s %s --help lists the keys", word,
            word, self->name, command->name);
    const char *key = command->options ? conf_nearest_key(word + 2) : NULL;
    char guess[256] = "";
    if (conf_is_near(word + 2, distance - 1))
        snprintf(guess, sizeof guess, " did you mean %s?", near);
    else if (key)
        snprintf(guess, sizeof guess, " did you mean --%s?", key);
    return FAIL(ST_USAGE, "%s %s does not know %s;%s %s %s --help lists what it accepts",
                self->name, command->name, word, guess, self->name, command->name);
}

/* A word after a switch that is neither true nor false is left for the verb to read. Most verbs
 * accept no such word, and then the message should say what was probably meant. */
static status check_switch(const program *self, const verb *command, const char *flag,
                           const char *next)
{
    const conf_row *option = conf_row_find(flag + 2);
    if (!option || conf_row_target(option)->kind != ROW_BOOL || !next || *next == '-' ||
        conf_bool_parse(next, &(bool){false}) || (*command->usage != '-' && *command->usage != '['))
        return ST_OK;
    return FAIL(ST_USAGE,
                "\"%.100s\" after %s is neither true nor false, and %s %s accepts no such word",
                next, flag, self->name, command->name);
}

/* Warns of an option on the command line that the verb does not read, because its author thinks
 * that it does something. It is no mistake: a run is planned and verified with the words that it is
 * made with, and scripts give both programs the same ones. A file is for all verbs, so there is no
 * warning for what stands in one. */
static void warn_unread(const program *self, const verb *command, const char *flag)
{
    char key[WORD_MAX * 2], who[512];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(flag + 2, "="), flag + 2);
    const conf_row *option = conf_row_find(key);
    option = option ? conf_row_target(option) : NULL;
    if (!option || !conf_row_is_option(option) ||
        conf_is_taken(option, self->trainer, command->name))
        return; /* conf_load says what else is wrong with it */
    conf_readers_text(option, who, sizeof who);
    log_warn("%s %s does not read --%s, so it changes nothing here (" CONF_SHARED
             " if that is meant); these do: %s",
             self->name, command->name, key, who);
}

static status check_word(const program *self, const verb *command, char *const *at, bool shared)
{
    char word[WORD_MAX], near[WORD_MAX] = "";
    snprintf(word, sizeof word, "%.*s", (int)strcspn(*at, "="), *at);
    if (!strchr(word, '.')) {
        const size_t distance = nearest_word(command, word, near);
        return distance ? unknown_word(self, command, word, near, distance) : ST_OK;
    }
    if (!command->options)
        return FAIL(ST_USAGE,
                    "%s %s does not read the options of a YAML file, such as %s; see %s %s --help",
                    self->name, command->name, word, self->name, command->name);
    if (!shared)
        warn_unread(self, command, *at);
    return check_switch(self, command, *at, at[1]);
}

status verb_check_words(const program *self, const verb *command, int argc, char **argv,
                        mistakes *wrong)
{
    bool shared = false;
    for (int i = 1; i < argc; i++)
        shared |= strcmp(argv[i], CONF_SHARED) == 0;
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--", 2) == 0)
            TRY(mistakes_add(wrong, check_word(self, command, &argv[i], shared)));
    return ST_OK;
}
