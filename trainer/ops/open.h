/* open.h: which device a run gets: a backend and the table of its ops. */
#ifndef TESSERA_TRAINER_OPS_OPEN_H
#define TESSERA_TRAINER_OPS_OPEN_H

#include "trainer/device/backend.h"

/* kind: BACKEND_* of conf.h. cuda where wanted and absent: ST_UNAVAILABLE with the reason; auto
 * takes the CPU and says why in the log. */
WARN_UNUSED status device_open(int kind, const device_options *o, device **out);

#endif
