/* SPDX-License-Identifier: Apache-2.0 */
/* rewind.h: moves lines out of files that have one line per step, {"step":N,..}. A run that goes on
 * from a checkpoint does again the steps after it; without this, each of them would have two lines.
 */
#ifndef TESSERA_TRAINER_REPORT_REWIND_H
#define TESSERA_TRAINER_REPORT_REWIND_H

#include <stdint.h>

#include "common/base/status.h"

/* Leaves one line in FOLDER/NAME for each step up to `step`, and appends all other lines to
 * FOLDER/set-aside-NAME. These are the lines of later steps, lines of a branch that was abandoned
 * (a line whose step is not above that of the line before begins a new branch), and a line that was
 * cut short when a process died. *out_set_aside: how many lines were moved. If there is no such
 * file, or nothing to move, no file changes.
 *
 * The moved lines are on disk in their new place before a rename removes them from the old one. So
 * a process that dies in between loses no line, but the next one may move some a second time. */
WARN_UNUSED status rewind_lines(const char *folder, const char *name, int64_t step,
                                int64_t *out_set_aside);

#endif
