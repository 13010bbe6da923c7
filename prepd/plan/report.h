/* report.h: what the files of plan_report share. */
#ifndef TESSERA_PREPD_PLAN_REPORT_H
#define TESSERA_PREPD_PLAN_REPORT_H

#include "prepd/plan/planner.h"

/* Samples that a common loader keeps in its buffer, from which greedy packing chooses. */
enum { GREEDY_BUFFER = 204 };

/* How many rows epoch 0 would have if it were packed greedily from a buffer of the next samples. */
WARN_UNUSED status plan_greedy_rows(plan *plan, int64_t *out_rows);

/* With data.group shared_prefix, prints its prefixes,
 * and what a sample costs beside other values. */
WARN_UNUSED status plan_report_sharing(plan *plan, FILE *to);

/* Prints the images of epoch 0 by area and aspect, with their share of all patches. */
WARN_UNUSED status plan_report_classes(plan *plan, FILE *to);

#endif
