/* SPDX-License-Identifier: Apache-2.0 */
/* reload.c: SIGHUP. The configuration is read again. Options that do not touch the stream take
 * effect; those that would are named and stay as they are. An invalid file changes nothing. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "prepd/serve/shell.h"

/* Sends the datagrams of sd_notify(3). */

/* The socket is opened once, so that a daemon without a free descriptor can still say that it
 * lives. */
static int notify_socket(void)
{
    static int fd = -1;
    if (fd < 0)
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd;
}

/* RELOADING=1; READY=1 ends it */
static void notify_reloading(void)
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

/* Options that a running daemon may change. Workers learn of them by new TERMS, for which they
 * start anew between two leases. To add one, also copy it in options_again (core/turn/turn.c). */
static const char *const changeable[] = {
    "prepd.workers",      "prepd.sample_timeout",  "prepd.solo_deaths", "prepd.buffer_bytes",
    "prepd.worker_bytes", "data.quarantine_limit", "log.level"};

static bool is_changeable(const char *key)
{
    for (size_t i = 0; i < sizeof(changeable) / sizeof(*changeable); i++)
        if (strcmp(changeable[i], key) == 0)
            return true;
    return false;
}

static char *print_options(const conf *options)
{
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return NULL;
    conf_print(options, file);
    if (fclose(file) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/* Calls `change` for every option that differs between two texts of lines "key: value". Both have
 * the same keys in the same order. */
typedef void (*on_change)(shell *around, const char *key, const char *value);

static void compare_options(shell *around, char *was, char *is, on_change change)
{
    char *save_was, *save_is;
    char *old_line = strtok_r(was, "\n", &save_was), *new_line = strtok_r(is, "\n", &save_is);
    for (; old_line && new_line;
         old_line = strtok_r(NULL, "\n", &save_was), new_line = strtok_r(NULL, "\n", &save_is)) {
        char *colon = strchr(new_line, ':');
        if (new_line[0] == '#' || !colon || strcmp(old_line, new_line) == 0)
            continue;
        *colon = 0;
        change(around, new_line, colon + 1 + strspn(colon + 1, " "));
    }
}

static void report_change(shell *around, const char *key, const char *value)
{
    if (is_changeable(key)) {
        log_info("reloaded %s=%s", key, value);
        around->reloaded++;
    } else {
        log_warn("not reloaded: %s stays as it is until the daemon is restarted", key);
    }
}

static status read_again(shell *around, conf *out)
{
    char **argv = calloc((size_t)around->n_args + 2, sizeof(*argv));
    int argc = around->n_args + 1;
    if (!argv)
        return FAIL(ST_NO_MEMORY, "no memory for a command line");
    argv[0] = (char[]){"serve"};
    memcpy(argv + 1, around->args, (size_t)around->n_args * sizeof(*argv));
    status st = conf_load(out, &argc, argv);
    free(argv);
    return st;
}

/* Reads again which keys are allowed, and whether some of them decide. */
static void reload_keys(shell *around)
{
    const char *folder = around->options->prepd_keys;
    bool trusted = false;
    if (wire_reload_keys(around->net) != ST_OK)
        log_warn("keys not reloaded, and the old ones stay in force: %s", status_text());
    else if (folder[0] && wire_role_is_given(folder, WIRE_TRUSTED, &trusted) == ST_OK)
        trust_again(around->core, trusted);
}

void reload_options(shell *around)
{
    conf now;
    notify_reloading();
    if (read_again(around, &now) != ST_OK) {
        log_warn("not reloaded, and nothing changes: %s", status_text());
    } else {
        char *was = print_options(around->options), *is = print_options(&now);
        around->reloaded = 0;
        if (was && is)
            compare_options(around, was, is, report_change);
        dispatch_at(around->core, clock_ns());
        options_again(around->core, &now);
        log_set_level((int)around->options->log_level);
        log_info("reloaded options=%d", around->reloaded);
        free(was);
        free(is);
        conf_done(&now);
    }
    reload_keys(around);
    notify_send("READY=1\n");
}
