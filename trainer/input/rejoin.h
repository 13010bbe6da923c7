/* rejoin.h: waits for a daemon that is gone, and enters its stream again after the last row that
 * arrived. The log says what it waits for and since when. */
#ifndef TESSERA_TRAINER_INPUT_REJOIN_H
#define TESSERA_TRAINER_INPUT_REJOIN_H

#include "proto/client.h"

/* To be called after client_next on c returned ST_UNAVAILABLE. `endpoint` is for the log; `cursor`
 * is that of the last row that arrived, "" before the first. ST_OK once the stream goes on;
 * ST_UNAVAILABLE, with the first cause, after patience_s seconds; ST_STOPPED after
 * client_interrupt; otherwise the daemon's refusal, which no waiting would change. */
WARN_UNUSED status rejoin_stream(client *client, const char *endpoint, const char *cursor,
                                 double patience_s);

#endif
