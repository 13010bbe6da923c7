/* plan_print.h: prints memory plans, for every device and every verb. */
#ifndef TESSERA_TRAINER_PLAN_PRINT_H
#define TESSERA_TRAINER_PLAN_PRINT_H

#include <stdio.h>

#include "trainer/plan/layout_plan.h"

/* Prints the regions of a rank and the device that they are planned for. */
void memory_plan_print(const memory_plan *plan, const layout *layout, const plan_device *on,
                       FILE *to);
/* Prints the mesh, the plan and memory.limit of the device, what activation checkpointing keeps,
 * and for each of its modes the largest micro-batch that fits. If the configured one does not fit,
 * it also prints the smallest change that does. out_fits may be NULL. */
WARN_UNUSED status layout_print(const plan_input *in, FILE *to, bool *out_fits);

#endif
