/* verb_words.h: checks the words of a command line before the verb runs. Internal to verb. */
#ifndef TESSERA_COMMON_PROGRAM_VERB_WORDS_H
#define TESSERA_COMMON_PROGRAM_VERB_WORDS_H

#include "common/conf/mistakes.h"
#include "common/program/verb.h"

/* Adds to the list every --word that is not one of the verb's, and every --section.key that no verb
 * of the program reads; warns of those that only other verbs of it read. Keys that no option has,
 * and values, are left to conf_load. */
WARN_UNUSED status verb_check_words(const program *program, const verb *verb, int argc, char **argv,
                                    mistakes *wrong);

#endif
