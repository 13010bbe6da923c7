/* SPDX-License-Identifier: Apache-2.0 */
/* conf.h: the options of a run, resolved.
 *
 * Every option is a row of options.def. Its field in struct conf, its YAML key, its flag, its range
 * check and its help all follow from that row. One YAML file serves both programs, and each checks
 * all of it. The command line (--section.key VALUE or --section.key=VALUE) overrides the file, and
 * the file overrides the defaults. An unknown key fails, and the message names the nearest valid
 * key if there is one that is near. */
#ifndef TESSERA_COMMON_CONF_H
#define TESSERA_COMMON_CONF_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/arena.h"
#include "common/base/hash.h"
#include "common/base/status.h"
#include "common/conf/mistakes.h"

/* The values of the OPTION_ENUM rows. */
#define CHOICE_NAME(name, text)         name,
#define OPTION_ENUM(section, name, ...) enum { CHOICES_##section##_##name(CHOICE_NAME) };
#include "common/conf/options.def"
#undef CHOICE_NAME

typedef struct conf {
#define OPTION_INT(section, name, ...)  int64_t section##_##name;
#define OPTION_REAL(section, name, ...) double section##_##name;
#define OPTION_BOOL(section, name, ...) bool section##_##name;
#define OPTION_TEXT(section, name, ...)                                                            \
    const char *section##_##name; /* never NULL; owned by the conf */
#define OPTION_ENUM(section, name, ...) int section##_##name;
#include "common/conf/options.def"
    bool is_held_out;  /* these are the options of the held-out stream (conf_eval) */
    arena texts;       /* owns the strings until conf_done */
    const char *place; /* where values were set: the YAML file, "command line", or both; "" if
                        * all are defaults */
} conf;

/* Loads the options of a command line: -c FILE (or --config FILE) and every --section.key VALUE in
 * argv[1..*argc). The other words stay, in their order, in argv[1..*argc) with *argc reduced, for
 * the verb to read. A switch can stand alone (--log.json) or be followed by true or false. Whatever
 * options held before is overwritten without being freed. Ends with conf_check.
 *
 * Relative paths in the file start at the file's folder; those on the command line and in defaults
 * start at the working directory. The default endpoint starts at the file's folder, so that both
 * programs meet. A model.path without a slash that is not a folder is left as it is, since it may
 * be the name of a preset. An Org/Name in model.path or model.tokenizer for which there is no
 * folder means the snapshot in the Hugging Face cache, if there is one (common/base/model_cache.h).
 *
 * On failure `options` is empty and need not be freed. ST_USAGE: the command line is wrong;
 * ST_CONFIG: the file is wrong (the message names the line), or options contradict each other;
 * ST_NO_INPUT: the file does not exist. */
WARN_UNUSED status conf_load(conf *options, int *argc, char **argv);

/* An option that a verb cannot do without. */
typedef struct conf_need {
    const char *key;    /* of a text, which must not be empty; NULL ends the list */
    const char *or_key; /* of another text that does as well; NULL: none */
    const char *advice; /* ends the message "KEY is not set: ADVICE" */
} conf_need;

/* The same, but goes on after a mistake and adds every one to `wrong`, which may hold some already:
 * each wrong key and value of the file and of the command line, each of `needs` that is not set
 * (NULL: none is needed), and, where there is nothing else, each rule between options that is
 * broken. Fails with the first mistake of the list if there is any. */
WARN_UNUSED status conf_load_all(conf *options, int *argc, char **argv, const conf_need *needs,
                                 mistakes *wrong);

/* A word of the command line that conf_load passes over (common/program/verb.h says what it
 * means). */
#define CONF_SHARED "--shared"
/* Frees what `options` owns and empties it. Accepts NULL and an empty conf. */
void conf_done(conf *options);

/* options->place, or NULL if all values are defaults: the `input` of a failure
 * (common/base/status.h) for which a combination of values is to blame. */
static inline const char *conf_place(const conf *options)
{
    return options->place && *options->place ? options->place : NULL;
}

/* Whether samples are texts alone, without a chat template or pictures. */
static inline bool conf_is_plain_text(const conf *options)
{
    return options->data_format == DATA_TEXT;
}

/* Whether the samples that show the same pictures are one unit of the plan. */
static inline bool conf_shares_images(const conf *options)
{
    return options->data_group == GROUP_SHARED_IMAGE || options->data_group == GROUP_SHARED_PREFIX;
}

/* Checks the rules between options; ST_CONFIG with the rule that is broken. conf_load calls it. A
 * caller that changes fields afterwards may call it again. */
WARN_UNUSED status conf_check(const conf *options);
/* Adds every rule that is broken to the list. */
WARN_UNUSED status conf_check_all(const conf *options, mistakes *wrong);

/* Sets one option as the command line would; `key` is without dashes. Does not call conf_check.
 * ST_USAGE if there is no such option or the text is not one of its values. */
WARN_UNUSED status conf_set(conf *options, const char *key, const char *value);

/* Whether there is an option of this key, or was one that old files may still name. */
bool conf_has(const char *key);

/* Makes a copy that owns its texts. The caller ends it with conf_done, also after a failure. */
WARN_UNUSED status conf_copy(const conf *from, conf *to);

/* Makes the options of the held-out stream: a copy of `options` in which eval.* has replaced
 * data.*, with one epoch, in the order of the data set, with majority answers and with reference
 * answers sent along. The caller ends it with conf_done; after a failure *out is untouched. */
WARN_UNUSED status conf_eval(const conf *options, conf *out);

/* Prints "key: value" of every option in a form that conf_load reads again (--print-config). */
void conf_print(const conf *options, FILE *to);
/* Prints the options part of `trainer VERB --help`, or else of `prepd VERB --help`: first those of
 * most_used (keys, ended by NULL; NULL: none), then, section by section, the other options that the
 * verb acts on: the BASIC ones, and with `all` the EXPERT ones too. Returns how many EXPERT options
 * were left out. */
int conf_help(FILE *to, bool trainer, const char *verb, const char *const *most_used, bool all);
/* Prints the page configs/README.md. */
void conf_reference(FILE *to);

/* Writes the STREAM options as one JSON object {"key": value, ...} in the order of the table; it
 * goes into HELLO. In place of the paths model.path and model.tokenizer stands model_digest, a hash
 * of what these folders hold, because they may be mounted elsewhere on another machine. *out is on
 * the heap and the caller frees it. */
WARN_UNUSED status conf_stream_json(const conf *options, hash128 model_digest, char **out);
/* Compares two such objects. *out_difference is NULL if they agree, else a heap string that names
 * the first key that differs: "training.seed: 1 here, 2 there". A key that one of them lacks has
 * its default there, because that stream was made by a build that did not know the option yet.
 * ST_PROTOCOL if one of the texts is not an object; ST_BAD_INPUT if it is not JSON. */
WARN_UNUSED status conf_stream_diff(const char *ours, const char *theirs, char **out_difference);

#endif
