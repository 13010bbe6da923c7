/* plan_print.h: prints memory plans, for every device and every verb. */
#ifndef TESSERA_TRAINER_PLAN_PRINT_H
#define TESSERA_TRAINER_PLAN_PRINT_H

#include <stdio.h>

#include "trainer/plan/layout_plan.h"
#include "trainer/plan/memory_text.h"

/* The parts that the short table adds regions up to. */
typedef enum memory_part {
    MEMORY_VALUES,
    MEMORY_WORK,
    MEMORY_DRIVER,
    MEMORY_HOST,
    MEMORY_PARTS
} memory_part;

/* A region of a plan: its key in memory.json, its name in the full table, its part and size. */
typedef struct memory_region {
    const char *key, *name;
    memory_part part;
    int64_t bytes;
} memory_region;

/* Lists the regions that a plan for this device has; returns how many. */
enum { MEMORY_REGIONS = 21 };
int memory_plan_regions(const memory_plan *plan, const plan_device *on,
                        memory_region out[MEMORY_REGIONS]);

/* Prints the table of a rank and the device that it is planned for. table: memory.table, TABLE_FULL
 * for every region to the byte, or TABLE_SHORT for at most six lines. */
void memory_plan_print(const memory_plan *plan, const layout *layout, const plan_device *on,
                       int table, FILE *to);
/* Prints the mesh, that table, and whether the micro-batch fits; if it does not, also the smallest
 * change that does. choices: also prints the largest micro-batch that fits with each mode of
 * activation checkpointing. The full table comes with these, what is in use in each phase of a
 * step, and what activation checkpointing keeps. out_fits may be NULL. */
WARN_UNUSED status layout_print(const plan_input *in, bool choices, FILE *to, bool *out_fits);

#endif
