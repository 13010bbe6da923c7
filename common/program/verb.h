/* verb.h: the main function of both programs: a table of verbs, their help, and the reading of
 * their command lines.
 *
 * The usage and help of a verb name every --word that it accepts. Before the verb runs, a word that
 * neither names is refused, and the message names the nearest one if there is one that is near. A
 * usage that does not begin with "-" or "[-" says that the verb accepts words without dashes. */
#ifndef TESSERA_COMMON_PROGRAM_VERB_H
#define TESSERA_COMMON_PROGRAM_VERB_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct verb {
    const char *name;
    status (*run)(int argc, char **argv); /* argv[0] is the verb, argv[-1] the program */
    const char *summary;                  /* the verb's line in the program's --help */
    const char *usage, *help;             /* what VERB --help prints */
    bool options;                         /* accepts -c FILE and --section.key VALUE */
    const char *hidden;       /* further words, which only our own programs use; NULL: none */
    const char *const *reads; /* keys of the options that it reads, ended by NULL; NULL: all */
} verb;

typedef struct program {
    const char *name, *purpose;
    const verb *verbs; /* [n] */
    int n;
    bool trainer; /* VERB --help lists the trainer's options, else prepd's */
} program;

/* All of main: runs the verb that the command line names and logs its failure. Returns the exit
 * code. A write to stdout that failed, such as on a full disk, is a failure too. */
int program_run(const program *program, int argc, char **argv);

/* Takes --NAME VALUE or --NAME=VALUE out of argv; `name` includes the dashes. *out is the value,
 * NULL if the word is absent, the last one if it is given twice. ST_USAGE if the value is missing.
 */
WARN_UNUSED status verb_take(int *argc, char **argv, const char *name, const char **out);
/* Takes --NAME out of argv and returns whether it was there. */
WARN_UNUSED bool verb_take_flag(int *argc, char **argv, const char *name);
/* ST_USAGE if argv has words left that nothing has taken. */
WARN_UNUSED status verb_all_taken(int argc, char **argv);
/* Reads a whole number from min to max. ST_USAGE, naming `name`, if text is none, or is NULL
 * because the word was absent. */
WARN_UNUSED status verb_number(const char *name, const char *text, int64_t min, int64_t max,
                               int64_t *out);

#endif
