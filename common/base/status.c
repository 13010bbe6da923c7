/* SPDX-License-Identifier: Apache-2.0 */
/* status.c: see status.h. Each thread has one note and one buffer for its text. */
#include "common/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local status_note last = {.line = -1, .offset = -1};
static _Thread_local char text[STATUS_MESSAGE_MAX + STATUS_PATH_MAX + 64];

static void copy_text(char *to, size_t size, const char *from)
{
    size_t count = strnlen(from, size - 1);
    memcpy(to, from, count);
    to[count] = 0;
}

status status_fail(status code, const char *source, int source_line, const char *input,
                   int64_t line, int64_t offset, const char *fmt, ...)
{
    /* The arguments may point into the last note, as in a FAIL that quotes status_text(). So the
     * message is formatted before anything of the note is overwritten. */
    const int os_error = errno;
    char message[STATUS_MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    char where[STATUS_PATH_MAX];
    copy_text(where, sizeof where, input ? input : "");
    copy_text(last.message, sizeof last.message, message);
    copy_text(last.input, sizeof last.input, where);
    last.code = code;
    last.line = line;
    last.offset = offset;
    last.source = source;
    last.source_line = source_line;
    last.os_error = os_error;
    return code;
}

status status_context(status code, const char *fmt, ...)
{
    char message[STATUS_MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    if (length < 0 || (size_t)length >= sizeof message)
        length = (int)strlen(message);
    snprintf(message + length, sizeof message - (size_t)length, ": %s", last.message);
    copy_text(last.message, sizeof last.message, message);
    return code;
}

const status_note *status_last(void)
{
    return &last;
}

const char *status_text(void)
{
    if (last.input[0] && last.line >= 0)
        snprintf(text, sizeof text, "%s:%lld: %s", last.input, (long long)last.line, last.message);
    else if (last.input[0] && last.offset >= 0)
        snprintf(text, sizeof text, "%s: byte %lld: %s", last.input, (long long)last.offset,
                 last.message);
    else if (last.input[0])
        snprintf(text, sizeof text, "%s: %s", last.input, last.message);
    else
        snprintf(text, sizeof text, "%s", last.message);
    return text;
}

void status_set(const status_note *note)
{
    last = *note;
}

void status_clear(void)
{
    memset(&last, 0, sizeof last);
    last.line = -1;
    last.offset = -1;
}

const char *status_name(status code)
{
    switch (code) {
#define STATUS_NAME(name, exit_code, meaning)                                                      \
    case name:                                                                                     \
        return #name;
        STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    default:
        return "unknown";
    }
}

const char *status_meaning(status code)
{
    switch (code) {
#define STATUS_MEANING(name, exit_code, meaning)                                                   \
    case name:                                                                                     \
        return meaning;
        STATUS_LIST(STATUS_MEANING)
#undef STATUS_MEANING
    default:
        return "unknown";
    }
}

int status_exit_code(status code)
{
    switch (code) {
#define STATUS_EXIT(name, exit_code, meaning)                                                      \
    case name:                                                                                     \
        return exit_code;
        STATUS_LIST(STATUS_EXIT)
#undef STATUS_EXIT
    default:
        return 70;
    }
}
