/* SPDX-License-Identifier: Apache-2.0 */
/* module_inside.c: the library's side of module.h: the functions of common/base/status.h and
 * common/program/log.h, which pass their arguments on to the program's functions. */
#include "common/program/module.h"

#include <stdarg.h>
#include <stdio.h>

#include "common/program/log.h"

static module_host program;

void module_enter(const module_host *given)
{
    program = *given;
}

status status_fail(status code, const char *source, int source_line, const char *input,
                   int64_t line, int64_t offset, const char *fmt, ...)
{
    char message[STATUS_MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return program.fail(code, source, source_line, input, line, offset, "%s", message);
}

status status_context(status code, const char *fmt, ...)
{
    char message[STATUS_MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return program.context(code, "%s", message);
}

const char *status_text(void)
{
    return program.text();
}

void status_clear(void)
{
    program.clear();
}

int status_exit_code(status code)
{
    return program.exit_code(code);
}

void log_event(int level, const char *fmt, ...)
{
    char text[STATUS_MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    program.log(level, "%s", text);
}
