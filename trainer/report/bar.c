/* bar.c: a progress bar of plain characters, sized to the terminal's width. */
#include "trainer/report/bar.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { CELLS = 30, FEWEST_CELLS = 5, LINE = 128 };

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

void bar_line(int64_t done, int64_t total, double seconds_left, int columns, char *out, size_t size)
{
    char words[LINE], cells[CELLS + 1], left[BAR_TIME] = "?";
    if (seconds_left >= 0)
        bar_time(seconds_left, left);
    if (total > 0)
        snprintf(words, sizeof words, "step %" PRId64 " of %" PRId64 ", %s left", done, total,
                 left);
    else
        snprintf(words, sizeof words, "step %" PRId64, done);
    /* The last column stays free, because some terminals begin a new line once it is written. */
    int n = columns - 1 - (int)strlen(words) - (int)strlen("[] ");
    n = n < CELLS ? n : CELLS;
    if (total <= 0 || n < FEWEST_CELLS) {
        snprintf(out, size, "%.*s", columns > 1 ? columns - 1 : 0, words);
        return;
    }
    for (int i = 0; i < n; i++)
        cells[i] = i < n * done / total ? '#' : '-';
    cells[n] = 0;
    snprintf(out, size, "[%s] %s", cells, words);
}

void bar_draw(int64_t done, int64_t total, double seconds_left)
{
    struct winsize w = {0};
    char line[LINE + CELLS + 8];
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
    bar_line(done, total, seconds_left, columns, line, sizeof line);
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
}

void bar_clear(void)
{
    fputs("\r\033[K", stderr);
    fflush(stderr);
}
