/* SPDX-License-Identifier: Apache-2.0 */
/* verb.h: the main function of both programs: a table of verbs, their help, and the reading of
 * their command lines.
 *
 * The usage and help of a verb name every --word that it accepts. Before the verb runs, every word
 * that neither names is refused, with the nearest one if there is one that is near. A --section.key
 * that only other verbs read (common/conf/options.def) is warned of, unless --shared is given too.
 * A usage that does not begin with "-" or "[-" says that the verb accepts words without dashes. */
#ifndef TESSERA_COMMON_PROGRAM_VERB_H
#define TESSERA_COMMON_PROGRAM_VERB_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/conf/conf.h"

typedef struct verb {
    const char *name;
    status (*run)(int argc, char **argv); /* argv[0] is the verb, argv[-1] the program */
    const char *summary;                  /* the verb's line in the program's --help */
    const char *usage, *help;             /* what VERB --help prints */
    bool options;                         /* accepts -c FILE and --section.key VALUE */
    const char *hidden;           /* further words, which only our own programs use; NULL: none */
    const char *const *most_used; /* keys that --help lists first, ended by NULL; NULL: none */
} verb;

typedef struct program {
    const char *name, *purpose;
    const verb *verbs; /* [count] */
    int count;
    bool trainer; /* else it is prepd */
} program;

/* All of main: runs the verb that the command line names and logs its failure. Returns the exit
 * code. A write to stdout that failed, such as on a full disk, is a failure too. */
int program_run(const program *program, int argc, char **argv);

/* conf_load_all for a verb: logs every mistake in the file and on the command line, and fails with
 * their number, or with the mistake itself if there is one. `options` is as after conf_load. */
WARN_UNUSED status verb_load(conf *options, int *argc, char **argv, const conf_need *needs);
/* The same for a verb that has taken its own words out of argv already, so that every word which is
 * left is a mistake too. */
WARN_UNUSED status verb_load_last(conf *options, int *argc, char **argv, const conf_need *needs);

/* Takes --NAME VALUE or --NAME=VALUE out of argv; `name` includes the dashes. *out is the value,
 * NULL if the word is absent, the last one if it is given twice. ST_USAGE if the value is missing.
 */
WARN_UNUSED status verb_take(int *argc, char **argv, const char *name, const char **out);
/* Takes --NAME out of argv and returns whether it was there. */
WARN_UNUSED bool verb_take_flag(int *argc, char **argv, const char *name);
/* Takes --overwrite out of argv, by which a user lets a verb replace what is there. Every verb that
 * writes a file or folder takes it, and calls verb_may_write before it does any work. */
WARN_UNUSED bool verb_take_overwrite(int *argc, char **argv);
/* ST_CANT_CREATE if something is at `path`: a file, or a folder that is not empty. */
WARN_UNUSED status verb_may_write(const char *path, bool overwrite);
/* ST_USAGE if argv has words left that nothing has taken. */
WARN_UNUSED status verb_all_taken(int argc, char **argv);
/* Reads a whole number from min to max. ST_USAGE, naming `name`, if text is none, or is NULL
 * because the word was absent. */
WARN_UNUSED status verb_number(const char *name, const char *text, int64_t min, int64_t max,
                               int64_t *out);

#endif
