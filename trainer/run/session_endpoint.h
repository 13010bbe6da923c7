/* session_endpoint.h: finds the daemon that serves a rank. Internal to session.c. */
#ifndef TESSERA_TRAINER_RUN_SESSION_ENDPOINT_H
#define TESSERA_TRAINER_RUN_SESSION_ENDPOINT_H

#include "trainer/run/session.h"

/* Sets session->endpoint, for the rank's place in the mesh. CONFIG if prepd.rank_endpoints leaves a
 * data-parallel rank out; then all ranks fail, with the same words. */
WARN_UNUSED status session_endpoint(session *session);

#endif
