/* notify.c: sends the datagrams of sd_notify(3). */
#include "prepd/serve/notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* The socket is opened once, so that a daemon without a free descriptor can still say that it
 * lives. */
static int notify_socket(void)
{
    static int fd = -1;
    if (fd < 0)
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd;
}

void notify_reloading(void)
{
    char lines[64];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(lines, sizeof(lines), "RELOADING=1\nMONOTONIC_USEC=%lld\n",
             (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
    notify_send(lines);
}

static void send_lines(const char *lines, int flags)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t count = path ? strlen(path) : 0;
    if (count < 2 || count >= sizeof(to.sun_path) || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(to.sun_path, path, count);
    if (path[0] == '@') /* an abstract name begins with a zero byte */
        to.sun_path[0] = 0;
    const int fd = notify_socket();
    if (fd < 0)
        return;
    /* If nothing listens, that is the service manager's problem. */
    ssize_t sent = sendto(fd, lines, strlen(lines), MSG_NOSIGNAL | flags, (struct sockaddr *)&to,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + count));
    (void)sent;
}

void notify_send(const char *lines)
{
    send_lines(lines, 0);
}

void notify_try(const char *lines)
{
    send_lines(lines, MSG_DONTWAIT);
}

int64_t notify_watchdog_ns(void)
{
    const char *usec = getenv("WATCHDOG_USEC");
    const char *pid = getenv("WATCHDOG_PID");
    if (!usec || (pid && strtoll(pid, NULL, 10) != getpid()))
        return 0;
    long long us = strtoll(usec, NULL, 10);
    return us > 0 ? (int64_t)us * 1000 / 2 : 0;
}
