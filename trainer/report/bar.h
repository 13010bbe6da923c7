/* bar.h: a progress bar for a person at a terminal, on stderr below the lines of the log: one line,
 * drawn over itself. Off where stderr is no terminal, TERM is dumb or --log.json asks for events.
 */
#ifndef TESSERA_TRAINER_REPORT_BAR_H
#define TESSERA_TRAINER_REPORT_BAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool bar_wanted(bool json);
/* done of total steps (0: unknown), seconds left (below 0: unknown). */
void bar_draw(int64_t done, int64_t total, double seconds_left);
/* What is drawn on a terminal of so many columns: cells first where they fit, else words alone. */
void bar_line(int64_t done, int64_t total, double seconds_left, int columns, char *out,
              size_t size);
/* Before anything else is printed. */
void bar_clear(void);
/* "1:02:03" */
enum { BAR_TIME = 32 };
const char *bar_time(double seconds, char out[BAR_TIME]);

#endif
