/* bar.h: a progress bar for a person at a terminal. It is one line on stderr, below the lines of
 * the log, and is drawn over itself. */
#ifndef TESSERA_TRAINER_REPORT_BAR_H
#define TESSERA_TRAINER_REPORT_BAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* False where stderr is no terminal, TERM is "dumb", or the log is JSON (log.json). */
bool bar_wanted(bool json);
/* Draws the bar for `done` steps of `total` (0: not known) with seconds_left to go (below 0: not
 * known). */
void bar_draw(int64_t done, int64_t total, double seconds_left);
/* The text of the bar for a terminal of `columns` columns: cells and words, or words alone where
 * the cells do not fit. */
void bar_line(int64_t done, int64_t total, double seconds_left, int columns, char *out,
              size_t size);
/* Removes the bar; call it before anything else is printed. */
void bar_clear(void);
/* Writes a duration as "1:02:03" or "2:03" and returns out. */
enum { BAR_TIME = 32 };
const char *bar_time(double seconds, char out[BAR_TIME]);

#endif
