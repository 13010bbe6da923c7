/* session_device.h: a session's device as one of several ranks has it. For session.c. */
#ifndef TESSERA_TRAINER_RUN_SESSION_DEVICE_H
#define TESSERA_TRAINER_RUN_SESSION_DEVICE_H

#include "trainer/run/session.h"

/* Opens device and stream, and shows the device to the ranks' engine: before groups are made. */
WARN_UNUSED status session_device(session *s);
/* Steps are captured as far as cuda_graph.scope and the layout allow; the ledger counts what is
 * captured whenever it runs. */
WARN_UNUSED status session_capture(session *s);

#endif
