/* session_device.h: opens the device of a session, which may be one of several ranks. Internal to
 * session.c. */
#ifndef TESSERA_TRAINER_RUN_SESSION_DEVICE_H
#define TESSERA_TRAINER_RUN_SESSION_DEVICE_H

#include "trainer/run/session.h"

/* Opens the device and its stream, and shows the device to the engine of the ranks. Must come
 * before the mesh makes its groups. */
WARN_UNUSED status session_device(session *session);
/* Finds whether nothing of a step is to be captured, as is known before there are activations: an
 * option says so, the ranks are stages of a pipeline, they exchange expert slots through the host
 * since an option says so or since they do not reach each other's memory, or no steps are made at
 * all. All ranks call it. */
WARN_UNUSED status session_uncaptured(const session *session, bool *out);
/* Turns on the capture of steps as graphs, as far as cuda_graph.scope, the layout and the trial
 * (trial.h) allow it, and writes session.choices, since by now all are made. The ledger of
 * collectives counts captured calls each time their graph runs. */
WARN_UNUSED status session_capture(session *session);

#endif
