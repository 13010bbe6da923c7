/* man_page.h: the manual page of a program, made from the rows that its --help prints. Private to
 * verb.c. */
#ifndef TESSERA_COMMON_PROGRAM_MAN_PAGE_H
#define TESSERA_COMMON_PROGRAM_MAN_PAGE_H

#include <stdio.h>

#include "common/program/verb.h"

/* Prints the page of section 1: the verbs, the options that any of them reads, the exit codes. */
void man_page(const program *program, FILE *to);

#endif
