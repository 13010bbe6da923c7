/* SPDX-License-Identifier: Apache-2.0 */
/* bar.c: see bar.h. The text of the bar is kept, so that a line of the log can be written in its
 * place and the bar below it again, all in one write. */
#include "common/program/bar.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"

enum {
    CELLS = 30,
    FEWEST_CELLS = 5,
    WORDS_MAX = 160,
    LINE_MAX_BYTES = WORDS_MAX + CELLS + 8,
    COLUMNS_UNKNOWN = 80,
    EVERY_NS = 100000000,
};

#define START_OF_LINE "\r"
#define ERASE_REST    "\033[K"
#define ERASE_LINE    START_OF_LINE ERASE_REST

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below, and of stderr's line */
static bar_rule rule = BAR_UNLESS_BACKGROUND;
static char shown[LINE_MAX_BYTES]; /* the bar that stands on the terminal; "": none */
static int64_t drawn_ns;           /* when it was last drawn; 0: the next call draws */

void bar_set_rule(bar_rule new_rule)
{
    if (rule != BAR_PLAIN)
        rule = new_rule;
}

/* Whether control characters may be written to stderr. */
static bool is_terminal(void)
{
    const char *term = getenv("TERM");
    return rule != BAR_PLAIN && term && *term && strcmp(term, "dumb") != 0 && isatty(STDERR_FILENO);
}

/* Whether the terminal is this process's to draw on now. It may be moved to the background and back
 * at any time. */
static bool is_in_front(void)
{
    const pid_t front = tcgetpgrp(STDERR_FILENO);
    if (rule == BAR_FOREGROUND)
        return front == getpgrp() && isatty(STDIN_FILENO);
    return front < 0 || front == getpgrp(); /* below 0: not the terminal of this session */
}

static int columns_now(void)
{
    struct winsize size = {0};
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? size.ws_col : COLUMNS_UNKNOWN;
}

double bar_seconds_left(int64_t since_ns, int64_t done, int64_t total)
{
    if (done <= 0)
        return -1.0;
    return (double)(clock_ns() - since_ns) * 1e-9 * (double)(total - done) / (double)done;
}

const char *bar_time(double seconds, char out[BAR_TIME])
{
    const int64_t whole = seconds > 0 ? (int64_t)seconds : 0;
    if (whole >= 3600)
        snprintf(out, BAR_TIME, "%" PRId64 ":%02d:%02d", whole / 3600, (int)(whole / 60 % 60),
                 (int)(whole % 60));
    else
        snprintf(out, BAR_TIME, "%d:%02d", (int)(whole / 60), (int)(whole % 60));
    return out;
}

void bar_line(double share, const char *words, int columns, char *out, size_t size)
{
    char cells[CELLS + 1];
    /* The last column stays free, because some terminals begin a new line once it is written. */
    int count = columns - 1 - (int)strlen(words) - (int)strlen("[] ");
    count = count < CELLS ? count : CELLS;
    if (share < 0 || count < FEWEST_CELLS) {
        snprintf(out, size, "%.*s", columns > 1 ? columns - 1 : 0, words);
        return;
    }
    const int full = share < 1 ? (int)(count * share) : count;
    memset(cells, '-', sizeof cells);
    memset(cells, '#', (size_t)full);
    cells[count] = 0;
    snprintf(out, size, "[%s] %s", cells, words);
}

/* A terminal or a log that cannot be written has nowhere to report that. */
static void write_bytes(const char *text, size_t size)
{
    (void)!file_write_all(STDERR_FILENO, text, size);
}

/* Calls only what a signal handler may call. SA_RESETHAND has brought the default action back. */
static void on_deadly_signal(int number)
{
    if (shown[0] && is_in_front())
        (void)!write(STDERR_FILENO, ERASE_LINE, strlen(ERASE_LINE));
    raise(number);
}

/* Lets a signal that would end the process erase the bar first. Signals that the program handles,
 * or is set to ignore, stay as they are. */
static void leave_no_bar(void)
{
    static const int deadly[] = {SIGINT, SIGTERM};
    const struct sigaction ours = {.sa_handler = on_deadly_signal, .sa_flags = (int)SA_RESETHAND};
    for (size_t i = 0; i < sizeof deadly / sizeof *deadly; i++) {
        struct sigaction now;
        if (sigaction(deadly[i], NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
            now.sa_handler == SIG_DFL)
            sigaction(deadly[i], &ours, NULL);
    }
}

static void draw_now(double share, const char *words)
{
    char text[LINE_MAX_BYTES + 8];
    bar_line(share, words, columns_now(), shown, sizeof shown);
    const int length =
        snprintf(text, sizeof text, START_OF_LINE "%s" ERASE_REST START_OF_LINE, shown);
    write_bytes(text, (size_t)length);
}

void bar_draw(double share, double seconds_left, const char *words, ...)
{
    char text[WORDS_MAX], left[BAR_TIME];
    const int64_t now = clock_ns();
    pthread_mutex_lock(&lock);
    const bool is_due = rule < BAR_NEVER && (!drawn_ns || share >= 1 || now - drawn_ns >= EVERY_NS);
    if (is_due && is_terminal() && is_in_front()) {
        va_list args;
        va_start(args, words);
        const int length = vsnprintf(text, sizeof text, words, args);
        va_end(args);
        if (seconds_left >= 0 && length >= 0 && (size_t)length < sizeof text)
            snprintf(text + length, sizeof text - (size_t)length, ", %s left",
                     bar_time(seconds_left, left));
        leave_no_bar();
        draw_now(share, text);
        drawn_ns = now;
    } else if (is_due) {
        shown[0] = 0; /* another program has the terminal now */
    }
    pthread_mutex_unlock(&lock);
}

void bar_clear(void)
{
    pthread_mutex_lock(&lock);
    if (shown[0] && is_in_front())
        write_bytes(ERASE_LINE, strlen(ERASE_LINE));
    shown[0] = 0;
    drawn_ns = 0;
    pthread_mutex_unlock(&lock);
}

bool bar_is_shown(void)
{
    pthread_mutex_lock(&lock);
    const bool is_shown = shown[0];
    pthread_mutex_unlock(&lock);
    return is_shown;
}

/* Writes the line in place of the bar and the bar below it. What is erased begins at the cursor:
 * all of another program's bar, nothing of a prompt. It is erased before the line is written, since
 * after a line as wide as the terminal its last character would go. */
static bool write_above_bar(const char *line, size_t size)
{
    const bool has_bar = shown[0] && is_in_front();
    const size_t room = size + sizeof shown + 16;
    char *text = malloc(room);
    if (!text)
        return false;
    const int length =
        snprintf(text, room, "%s" ERASE_REST "%.*s%s%s", has_bar ? START_OF_LINE : "", (int)size,
                 line, has_bar ? shown : "", has_bar ? START_OF_LINE : "");
    write_bytes(text, (size_t)length);
    free(text);
    return true;
}

void bar_write_line(const char *line, size_t size)
{
    pthread_mutex_lock(&lock);
    if (!is_terminal() || !write_above_bar(line, size))
        write_bytes(line, size);
    pthread_mutex_unlock(&lock);
}
