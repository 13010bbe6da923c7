/* verb_help.h: what --help prints. Private to verb.c. */
#ifndef TESSERA_COMMON_PROGRAM_VERB_HELP_H
#define TESSERA_COMMON_PROGRAM_VERB_HELP_H

#include <stdio.h>

#include "common/program/verb.h"

/* The program's verbs with a line for each. */
void help_of_program(const program *program, FILE *to);
/* The verb's usage, its words, and the options that it reads; with `all` the EXPERT ones too. */
void help_of_verb(const program *program, const verb *verb, bool all);

#endif
