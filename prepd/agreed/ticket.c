/* SPDX-License-Identifier: Apache-2.0 */
/* ticket.c: see ticket.h. */
#include "prepd/agreed/ticket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { TICKET_BYTES = 16, WAIT_MS = 10000 };

status ticket_draw(char out[TICKET_TEXT])
{
    uint8_t drawn[TICKET_BYTES];
    if (getrandom(drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
        return FAIL(ST_OS, "no random numbers for a worker's ticket: %s", strerror(errno));
    for (int i = 0; i < TICKET_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", drawn[i]);
    return ST_OK;
}

/* Reads up to the end of the input, or as much as a ticket and its newline have. */
static status read_input(char *text, size_t room, size_t *out_size)
{
    size_t size = 0;
    while (size < room) {
        struct pollfd wait = {.fd = STDIN_FILENO, .events = POLLIN};
        const int ready = poll(&wait, 1, WAIT_MS);
        const ssize_t got = ready > 0 ? read(STDIN_FILENO, text + size, room - size) : ready;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return FAIL(ST_OS, "cannot read the ticket from standard input: %s", strerror(errno));
        if (got == 0)
            break;
        size += (size_t)got;
    }
    *out_size = size;
    return ST_OK;
}

static status empty_input(void)
{
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) != STDIN_FILENO)
        return FAIL(ST_OS, "cannot open /dev/null: %s", strerror(errno));
    if (null != STDIN_FILENO)
        close(null);
    return ST_OK;
}

status ticket_take(char out[TICKET_TEXT])
{
    char text[TICKET_TEXT];
    size_t size;
    TRY(read_input(text, sizeof text, &size));
    if (size != sizeof text || text[TICKET_TEXT - 1] != '\n' ||
        strspn(text, "0123456789abcdef") != TICKET_TEXT - 1)
        return FAIL(ST_USAGE, "a worker with --parent is started by prepd serve, which writes a "
                              "ticket to its standard input; there is none");
    TRY(empty_input());
    memcpy(out, text, TICKET_TEXT - 1);
    out[TICKET_TEXT - 1] = 0;
    return ST_OK;
}
