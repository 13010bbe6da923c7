/* SPDX-License-Identifier: Apache-2.0 */
/* plan_print.h: prints memory plans, for every device and every verb, and a plan as JSON. */
#ifndef TESSERA_TRAINER_PLAN_PRINT_H
#define TESSERA_TRAINER_PLAN_PRINT_H

#include <stdio.h>

#include "trainer/plan/layout_plan.h"
#include "trainer/plan/rates.h"
#include "trainer/plan/memory.h"

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

/* Prints the table of a rank and the device that it is planned for: with `full` every region to the
 * byte, else at most six lines. */
void memory_plan_print(const memory_plan *plan, const layout *layout, const plan_device *on,
                       bool full, FILE *to);
/* How much layout_print prints. PLAN_SHORT: the short table. PLAN_CHOICES: also the largest
 * micro-batch that fits with each mode of activation checkpointing. PLAN_FULL: the full table and
 * these choices. */
typedef enum plan_detail { PLAN_SHORT, PLAN_CHOICES, PLAN_FULL } plan_detail;
/* Prints the mesh, that table, and whether the micro-batch fits; if it does not, also the smallest
 * change that does. out_fits may be NULL. */
WARN_UNUSED status layout_print(const plan_input *in, plan_detail detail, FILE *to, bool *out_fits);

/* Writes one JSON object: the device, and for each mode of activation checkpointing the memory of a
 * micro-batch of training.local_batch_size rows and, unless `rates` is NULL, its predicted time. */
WARN_UNUSED status plan_json_print(const plan_input *in, const rates *rates, FILE *to);

/* Writes job.dump_folder/memory.json, the plan of a rank's memory to the byte:
 *
 *   {"device":"CPU","device_bytes":N,"usable_bytes":N,"sharers":N,"planned_by_options":N,
 *    "total":N,"regions":{"parameters":N, ..}}
 *
 * "total" and "regions" are planned by the shapes of the stream, by_options as trainer plan does
 * it. On a GPU, regions whose names begin with "host_" are not part of the total. A disk that
 * refuses the file costs a warning. */
WARN_UNUSED status plan_json_write(const char *folder, const plan_device *on,
                                   const memory_plan *plan, int64_t by_options);

#endif
