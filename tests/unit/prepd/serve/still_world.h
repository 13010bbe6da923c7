/* SPDX-License-Identifier: Apache-2.0 */
/* still_world.h: a world for the dispatcher's core in which nothing happens: what is sent is
 * dropped, processes cannot be started, files are not there, nothing is logged. */
#ifndef TESSERA_TESTS_UNIT_PREPD_SERVE_STILL_WORLD_H
#define TESSERA_TESTS_UNIT_PREPD_SERVE_STILL_WORLD_H

#include "prepd/serve/core/state/lease.h"
#include "prepd/serve/core/state/outside.h"

outside still_world(void);

/* Takes the first lost lease off the queue, whoever may do it; NULL if there is none. Only `fresh`
 * gets one that is tried alone, and that first. */
lease *lease_book_take(lease_book *book, bool fresh);

#endif
