/* SPDX-License-Identifier: Apache-2.0 */
/* verb_parts.h: the parts of verb.c: help, the manual page, and the words of a command line. Private
 * to it. */
#ifndef TESSERA_COMMON_PROGRAM_VERB_PARTS_H
#define TESSERA_COMMON_PROGRAM_VERB_PARTS_H

#include <stdio.h>

#include "common/conf/mistakes.h"
#include "common/program/verb.h"

/* The program's verbs with a line for each. */
void help_of_program(const program *program, FILE *to);
/* The verb's usage, its words, and the options that it reads; with `all` the EXPERT ones too. */
void help_of_verb(const program *program, const verb *verb, bool all);

/* The manual page of a program, made from the rows that its --help prints. Private to
 * verb.c. */

/* Prints the page of section 1: the verbs, the options that any of them reads, the exit codes. */
void man_page(const program *program, FILE *to);

/* Checks the words of a command line before the verb runs. Internal to verb. */

/* Adds to the list every --word that is not one of the verb's, and every --section.key that no verb
 * of the program reads; warns of those that only other verbs of it read. Keys that no option has,
 * and values, are left to conf_load. */
WARN_UNUSED status verb_check_words(const program *program, const verb *verb, int argc, char **argv,
                                    mistakes *wrong);

#endif
