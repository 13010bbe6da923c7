/* SPDX-License-Identifier: Apache-2.0 */
/* conf_room.h: what the parts of test_conf share: a folder with a configuration file, calls that
 * load it or expect its refusal, and the groups of tests beside test_conf.c, which runs them all.
 */
#ifndef TESSERA_TESTS_UNIT_COMMON_CONF_ROOM_H
#define TESSERA_TESTS_UNIT_COMMON_CONF_ROOM_H

#include "common/conf/conf.h"

typedef struct room {
    char *folder;
    char file[4096];
} room;

/* Set-up and tear-down of a group, whose tests have a room as their state. */
int enter_room(void **state);
int leave_room(void **state);

/* Writes the room's file. */
void write_yaml(const room *space, const char *text);
/* Loads a configuration file of this text, with up to four more arguments on the command line; the
 * first that is NULL ends them. */
status load_args(const room *space, conf *options, const char *text, const char *first,
                 const char *second, const char *third, const char *fourth);
status load_text(const room *space, conf *options, const char *text);
/* Fails the test unless such a file, or such a command line of one or two arguments, is refused
 * with these words. */
void refuse_conf(const room *space, const char *text, const char *words);
void refuse_flag(const char *first, const char *second, const char *words);

/* Each returns the number of tests that failed. */
int run_conf_help_tests(void);
int run_conf_stream_tests(void);

#endif
