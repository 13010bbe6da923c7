/* SPDX-License-Identifier: Apache-2.0 */
/* mistakes.h: collects what is wrong with the options of a run, so that a person is told all of it
 * at once and not one mistake a run.
 *
 * A caller that reads several options adds the status of each to the list and goes on. At the end
 * it prints the list, or takes the first mistake as an ordinary failure. */
#ifndef TESSERA_COMMON_CONF_MISTAKES_H
#define TESSERA_COMMON_CONF_MISTAKES_H

#include <stdint.h>

#include "common/base/status.h"

enum { MISTAKES_KEPT = 50 };

/* An empty list is all zeros. */
typedef struct mistakes {
    int64_t count;             /* how many were found; the first MISTAKES_KEPT are kept */
    char *text[MISTAKES_KEPT]; /* each as status_text() gives it, on the heap */
    status_note *first;        /* on the heap; NULL while the list is empty */
} mistakes;

/* Adds the thread's last note if st is the user's mistake (ST_USAGE, ST_CONFIG, ST_NO_INPUT or
 * ST_IO of a file), and returns ST_OK, so that the caller goes on. Any other failure is returned
 * as it is, since there is no point in going on. */
WARN_UNUSED status mistakes_add(mistakes *list, status st);
/* ST_OK for an empty list, else the code of the first mistake, whose note becomes the thread's last
 * one. */
WARN_UNUSED status mistakes_first(const mistakes *list);
/* Frees what the list owns and empties it. */
void mistakes_done(mistakes *list);

#endif
