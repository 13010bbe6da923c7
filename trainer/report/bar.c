#include "trainer/report/bar.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CELLS = 30 };

bool bar_wanted(bool json)
{
    const char *term = getenv("TERM");
    return !json && isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

const char *bar_time(double seconds, char out[BAR_TIME])
{
    int64_t s = seconds > 0 ? (int64_t)seconds : 0;
    if (s >= 3600)
        snprintf(out, BAR_TIME, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60),
                 (int)(s % 60));
    else
        snprintf(out, BAR_TIME, "%d:%02d", (int)(s / 60), (int)(s % 60));
    return out;
}

void bar_draw(int64_t done, int64_t total, double seconds_left)
{
    char cells[CELLS + 1], left[BAR_TIME] = "?";
    int filled = total > 0 ? (int)(CELLS * done / total) : 0;
    for (int i = 0; i < CELLS; i++)
        cells[i] = i < filled ? '#' : '-';
    cells[CELLS] = 0;
    if (seconds_left >= 0)
        bar_time(seconds_left, left);
    if (total > 0)
        fprintf(stderr, "\r[%s] step %" PRId64 " of %" PRId64 ", %s left\033[K", cells, done, total,
                left);
    else
        fprintf(stderr, "\rstep %" PRId64 "\033[K", done);
    fflush(stderr);
}

void bar_clear(void)
{
    fputs("\r\033[K", stderr);
    fflush(stderr);
}
