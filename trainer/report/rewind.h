/* rewind.h: the files that a run writes a line per step into, {"step":N,..}, when it goes on from a
 * step that is not their last: without this, a step that is done twice would have two lines. */
#ifndef TESSERA_TRAINER_REPORT_REWIND_H
#define TESSERA_TRAINER_REPORT_REWIND_H

#include <stdint.h>

#include "common/base/status.h"

/* Leaves in FOLDER/NAME one line for each step up to `step`, of the branch that the run followed to
 * the end (a line of a step at or below the one before begins another branch there). All others,
 * later ones, those of a branch that was left, and one that a death cut short, are appended to
 * FOLDER/set-aside-NAME. *out_set_aside: how many. Without such a file, or where nothing is to be
 * moved, no file changes. What is moved is on disk there before it goes here, by a rename: a
 * process that dies meanwhile loses none, and the next one may move some a second time. */
WARN_UNUSED status rewind_lines(const char *folder, const char *name, int64_t step,
                                int64_t *out_set_aside);

#endif
