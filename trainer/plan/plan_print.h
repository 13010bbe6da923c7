/* plan_print.h: the one printer of memory plans, whatever the device. */
#ifndef TESSERA_TRAINER_PLAN_PRINT_H
#define TESSERA_TRAINER_PLAN_PRINT_H

#include <stdio.h>

#include "trainer/plan/layout_plan.h"

/* A rank's regions, and on which device. */
void memory_plan_print(const memory_plan *m, const layout *l, const plan_device *on, FILE *to);
/* Prints the mesh, the plan against memory.limit of the device, what activation checkpointing
 * keeps, every mode of it with the largest micro-batch that fits and, where this one does not, the
 * smallest change that does. *out_fits may be NULL. */
WARN_UNUSED status layout_print(const plan_input *in, FILE *to, bool *out_fits);

#endif
