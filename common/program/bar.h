/* SPDX-License-Identifier: Apache-2.0 */
/* bar.h: the progress bar, for a person at a terminal: the last line of stderr, drawn over itself.
 *
 * A process has at most one, and a signal that ends the process leaves none. After it is drawn, the
 * cursor stands at the start of its line, so that whatever any program prints next lies over it and
 * leaves no half of a bar in front of its words. Lines of the log (log.h) appear above the bar.
 * Before anything else is printed, on stdout for example, call bar_clear.
 *
 * No bar is drawn where stderr is no terminal, TERM is unset or "dumb", or the process is in the
 * background of its terminal, which is asked each time, as is the terminal's width. A bar has no
 * colours, so NO_COLOR has nothing to change. */
#ifndef TESSERA_COMMON_PROGRAM_BAR_H
#define TESSERA_COMMON_PROGRAM_BAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bar_rule {
    BAR_UNLESS_BACKGROUND, /* the default. A separate session has no background and draws too */
    /* Only in the foreground of the process's own terminal, with a terminal as stdin too: the
     * shell of a script gives /dev/null to what it starts in the background. For a daemon. */
    BAR_FOREGROUND,
    BAR_NEVER,
    BAR_PLAIN, /* nor control characters around lines of the log. It stays once it is set */
} bar_rule;

/* Call before threads start. */
void bar_set_rule(bar_rule rule);
/* Draws the bar: the share of the work that is done, from 0 to 1 (below 0: not known, no cells);
 * words; and the time that is left (below 0: not known, left out). Draws at most ten times a
 * second, at once after bar_clear and when all is done; can be called as often as one likes. */
void bar_draw(double share, double seconds_left, const char *words, ...)
    __attribute__((format(printf, 3, 4)));
/* Removes the bar, if there is one. */
void bar_clear(void);
bool bar_is_shown(void);
/* Writes a whole line, with its newline, to stderr by one write(2): above the bar if there is one,
 * over what is left of another program's if there is not. For log.c. */
void bar_write_line(const char *line, size_t size);

/* Seconds that the rest takes at the pace since since_ns (clock.h); below 0 if nothing is done. */
double bar_seconds_left(int64_t since_ns, int64_t done, int64_t total);
/* The text of the bar for a terminal of `columns` columns: cells and words, or words alone where
 * the cells do not fit. The last column stays free. */
void bar_line(double share, const char *words, int columns, char *out, size_t size);
/* Writes a duration as "1:02:03" or "2:03" and returns out. */
enum { BAR_TIME = 32 };
const char *bar_time(double seconds, char out[BAR_TIME]);

#endif
