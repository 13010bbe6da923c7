/* session_device.h: opens the device of a session, which may be one of several ranks. Internal to
 * session.c. */
#ifndef TESSERA_TRAINER_RUN_SESSION_DEVICE_H
#define TESSERA_TRAINER_RUN_SESSION_DEVICE_H

#include "trainer/run/session.h"

/* Opens the device and its stream, and shows the device to the engine of the ranks. Must come
 * before the mesh makes its groups. */
WARN_UNUSED status session_device(session *session);
/* Whether nothing of a step is to be captured, as is known before there are activations: an option
 * says so, the ranks are stages of a pipeline, or they exchange expert slots through the host. */
bool session_uncaptured(const session *session);
/* Turns on the capture of steps as graphs, as far as cuda_graph.scope, the layout and the trial
 * (trial.h) allow it, and writes session.choices, since by now all are made. The ledger of
 * collectives counts captured calls each time their graph runs. */
WARN_UNUSED status session_capture(session *session);

#endif
