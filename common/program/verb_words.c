/* verb_words.c: the words of a command line that begin with --. Each is named in the verb's usage
 * or help, or is the key of an option that the verb takes (it contains a dot), or is a mistake. */
#include "common/program/verb_words.h"

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
                                 v->options ? "--config --print-config --help " CONF_SHARED
                                            : "--help"};
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

/* Warns of an option on the command line that the verb does not read, because its author thinks
 * that it does something. It is no mistake: a run is planned and verified with the words that it is
 * made with, and scripts give both programs the same ones. A file is for all verbs, so there is no
 * warning for what stands in one. */
static void warn_unread(const program *p, const verb *v, const char *flag)
{
    char key[WORD_MAX * 2], who[512];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(flag + 2, "="), flag + 2);
    const conf_row *r = conf_row_find(key);
    r = r ? conf_row_target(r) : NULL;
    if (!r || !conf_row_is_option(r) || conf_is_taken(r, p->trainer, v->name))
        return; /* conf_load says what else is wrong with it */
    conf_readers_text(r, who, sizeof who);
    log_warn("%s %s does not read --%s, so it changes nothing here (" CONF_SHARED
             " if that is meant); these do: %s",
             p->name, v->name, key, who);
}

static status check_word(const program *p, const verb *v, char *const *at, bool shared)
{
    char word[WORD_MAX], near[WORD_MAX] = "";
    snprintf(word, sizeof word, "%.*s", (int)strcspn(*at, "="), *at);
    if (!strchr(word, '.')) {
        const size_t distance = nearest_word(v, word, near);
        return distance ? unknown_word(p, v, word, near, distance) : ST_OK;
    }
    if (!v->options)
        return FAIL(ST_USAGE,
                    "%s %s does not read the options of a YAML file, such as %s; see %s %s --help",
                    p->name, v->name, word, p->name, v->name);
    if (!shared)
        warn_unread(p, v, *at);
    return check_switch(p, v, *at, at[1]);
}

status verb_check_words(const program *p, const verb *v, int argc, char **argv, mistakes *wrong)
{
    bool shared = false;
    for (int i = 1; i < argc; i++)
        shared |= strcmp(argv[i], CONF_SHARED) == 0;
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--", 2) == 0)
            TRY(mistakes_add(wrong, check_word(p, v, &argv[i], shared)));
    return ST_OK;
}
