/* verb.h: the front end of both programs: a table of verbs, their help, the words of a command
 * line.
 *
 * A verb names each --word that it takes in its usage or its help: what stands in neither is
 * refused before the verb runs, with the nearest that does, if one is near. A usage that begins
 * with neither - nor [- takes words without dashes. */
#ifndef TESSERA_COMMON_PROGRAM_VERB_H
#define TESSERA_COMMON_PROGRAM_VERB_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct verb {
    const char *name;
    status (*run)(int argc, char **argv); /* argv[0]: the verb; argv[-1]: the program */
    const char *summary;                  /* its line of --help */
    const char *usage, *help;             /* of VERB --help */
    bool options;                         /* takes -c FILE and --section.key VALUE */
    const char *hidden;                   /* words that only we ourselves give; NULL: none */
    const char *const *reads;             /* keys of the options it reads, then NULL; NULL: all */
} verb;

typedef struct program {
    const char *name, *purpose;
    const verb *verbs; /* [n] */
    int n;
    bool trainer; /* whose options VERB --help tells; else prepd's */
} program;

/* All of main: runs the verb, logs why it failed; the exit code. What was printed has arrived, or
 * that is a failure. */
int program_run(const program *p, int argc, char **argv);

/* --NAME VALUE (or --NAME=VALUE) of a verb, taken out of argv; NULL if absent. */
WARN_UNUSED status verb_take(int *argc, char **argv, const char *name, const char **out);
/* --NAME, taken out of argv. */
WARN_UNUSED bool verb_take_flag(int *argc, char **argv, const char *name);
/* ST_USAGE if a word was not taken. */
WARN_UNUSED status verb_all_taken(int argc, char **argv);
/* Whole number in [min, max]; what is wrong is told as name's. text NULL: it is missing. */
WARN_UNUSED status verb_number(const char *name, const char *text, int64_t min, int64_t max,
                               int64_t *out);

#endif
