/* rejoin.h: a daemon that went is waited for, and its stream entered again behind the last row that
 * arrived. Says in the log what it waits for, and since when. */
#ifndef TESSERA_TRAINER_INPUT_REJOIN_H
#define TESSERA_TRAINER_INPUT_REJOIN_H

#include "proto/client.h"

/* After client_next said ST_UNAVAILABLE on c. endpoint: for the log. cursor: of the last row that
 * came, "" before the first. ST_UNAVAILABLE, with what happened first, after patience_s seconds;
 * ST_STOPPED on client_interrupt; else the daemon's refusal, which no waiting mends. */
WARN_UNUSED status rejoin_stream(client *c, const char *endpoint, const char *cursor,
                                 double patience_s);

#endif
