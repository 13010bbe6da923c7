/* experts_choice.h: which kernel of the experts' products a CUDA device runs. */
#ifndef TESSERA_TRAINER_DEVICE_EXPERTS_CHOICE_H
#define TESSERA_TRAINER_DEVICE_EXPERTS_CHOICE_H

#include <stdbool.h>

#include "common/base/status.h"

/* wanted: EXPERTS_* of conf.h. sm: the GPU's compute capability times ten. *out_hopper is whether
 * Hopper's kernel runs, or else the portable one. ST_UNAVAILABLE if Hopper's is wanted by name and
 * the GPU is another one. */
WARN_UNUSED status experts_choose(int wanted, int sm, bool *out_hopper);

#endif
