/* SPDX-License-Identifier: Apache-2.0 */
/* ticket.h: the secret by which a daemon knows the workers that it started.
 *
 * The daemon draws a ticket for each of its children and writes it to the child's standard input,
 * which no other user can read and which shows neither in its command line nor in its environment.
 * The worker says it in every JOIN. Nothing else makes a worker local: no host name, no process
 * number and no kind of connection. */
#ifndef TESSERA_PREPD_AGREED_TICKET_H
#define TESSERA_PREPD_AGREED_TICKET_H

#include "common/base/status.h"

enum { TICKET_TEXT = 33 }; /* 128 bits as hex digits, and the zero */

/* Draws a ticket from the system's random numbers. ST_OS if there are none. */
WARN_UNUSED status ticket_draw(char out[TICKET_TEXT]);
/* In the child: takes the ticket from standard input, which is /dev/null afterwards. ST_USAGE if
 * none comes within ten seconds: a daemon did not start this process. */
WARN_UNUSED status ticket_take(char out[TICKET_TEXT]);

#endif
