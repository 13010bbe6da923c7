/* report.h: inside of the report. */
#ifndef TESSERA_PREPD_PLAN_REPORT_H
#define TESSERA_PREPD_PLAN_REPORT_H

#include "prepd/plan/planner.h"

enum { GREEDY_BUFFER = 204 }; /* samples: what a common loader holds */

/* Rows of epoch 0, had they been packed greedily from a buffer of the next samples. */
WARN_UNUSED status plan_greedy_rows(plan *p, int64_t *out_rows);

/* Images of epoch 0 by area and aspect: their share, and of the patches. */
WARN_UNUSED status plan_report_classes(plan *p, FILE *to);

#endif
