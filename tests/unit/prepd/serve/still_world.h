/* still_world.h: a world for the dispatcher's core in which nothing happens: what is sent is
 * dropped, processes cannot be started, files are not there, nothing is logged. */
#ifndef TESSERA_TESTS_UNIT_PREPD_SERVE_STILL_WORLD_H
#define TESSERA_TESTS_UNIT_PREPD_SERVE_STILL_WORLD_H

#include "prepd/serve/core/outside.h"

outside still_world(void);

#endif
