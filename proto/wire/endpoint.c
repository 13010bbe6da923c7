/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.c: parses addresses, shortens long ipc paths, and tells whether an address is in use. */
#include "proto/wire/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/wire/wire.h"

static const char IPC[] = "ipc://", TCP[] = "tcp://";
static const char WORKERS[] = ".workers", CONTROL[] = ".control"; /* wire_beside */

bool wire_is_ipc(const char *text)
{
    return strncmp(text, IPC, sizeof IPC - 1) == 0;
}

static status parse_ipc(const char *text, endpoint *out)
{
    const char *path = text + sizeof IPC - 1;
    size_t size = strlen(path);
    if (size == 0 || path[0] == '@' || path[0] == '*')
        return FAIL(ST_CONFIG, "endpoint \"%s\": expected ipc://PATH with the path of a file",
                    text);
    if (size >= sizeof out->path)
        return FAIL(ST_CONFIG,
                    "endpoint \"%.100s...\": the path has %zu bytes, expected at most %zu; choose "
                    "a shorter prepd.endpoint",
                    text, size, sizeof out->path - 1);
    memcpy(out->path, path, size + 1);
    memcpy(out->text, text, strlen(text) + 1);
    return ST_OK;
}

/* The number in text if all of it is a decimal in [1, 65535], else 0. */
static int port_of(const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0 && value > 0 && value < 65536
               ? (int)value
               : 0;
}

static status parse_tcp(const char *text, endpoint *out)
{
    const char *host = text + sizeof TCP - 1, *colon = strrchr(host, ':');
    char name[256];
    if (!colon || (out->port = port_of(colon + 1)) == 0)
        return FAIL(ST_CONFIG,
                    "endpoint \"%s\": expected tcp://HOST:PORT with a port of 1 to 65535", text);
    size_t size = (size_t)(colon - host);
    if (size == 0 || size >= sizeof name)
        return FAIL(ST_CONFIG, "endpoint \"%s\": expected a host of 1 to %zu bytes", text,
                    sizeof name - 1);
    memcpy(name, host, size);
    name[size] = 0;
    struct in_addr ip4;
    bool is_local = strcmp(name, "localhost") == 0;
    bool is_ip4 =
        is_local || (inet_pton(AF_INET, name, &ip4) == 1 && ntohl(ip4.s_addr) >> 24 == 127);
    out->is_ip6 = name[0] == '[';
    out->is_local = is_ip4 || strcmp(name, "[::1]") == 0;
    snprintf(out->text, sizeof out->text, "tcp://%s:%d", is_local ? "127.0.0.1" : name, out->port);
    return ST_OK;
}

status endpoint_parse(const char *text, endpoint *out)
{
    endpoint address = {.is_ipc = wire_is_ipc(text)};
    if (address.is_ipc)
        TRY(parse_ipc(text, &address));
    else if (strncmp(text, TCP, sizeof TCP - 1) == 0)
        TRY(parse_tcp(text, &address));
    else
        return FAIL(ST_CONFIG, "endpoint \"%s\": expected ipc://PATH or tcp://HOST:PORT", text);
    *out = address;
    return ST_OK;
}

/* The descriptor of a folder, which is opened unless it is open already. */
static status open_folder(const char *folder, endpoint_folders *open_ones, int *out)
{
    struct stat now, then;
    if (stat(folder, &now) == 0)
        for (int i = 0; i < open_ones->count; i++)
            if (fstat(open_ones->fd[i], &then) == 0 && then.st_dev == now.st_dev &&
                then.st_ino == now.st_ino) {
                *out = open_ones->fd[i];
                return ST_OK;
            }
    int *more = realloc(open_ones->fd, ((size_t)open_ones->count + 1) * sizeof *more);
    if (!more)
        return FAIL(ST_NO_MEMORY, "no memory for an endpoint");
    open_ones->fd = more;
    int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_IN(ST_UNAVAILABLE, folder, "the folder of prepd.endpoint cannot be opened: %s",
                       strerror(errno));
    open_ones->fd[open_ones->count++] = *out = fd;
    return ST_OK;
}

status endpoint_shorten(endpoint *address, endpoint_folders *open_ones)
{
    enum { MOST = sizeof((struct sockaddr_un *)NULL)->sun_path - 1 };
    char path[MOST + 1], *slash = strrchr(address->path, '/');
    int fd;
    if (!address->is_ipc || strlen(address->path) <= MOST)
        return ST_OK;
    if (slash) {
        *slash = 0;
        status st = open_folder(slash == address->path ? "/" : address->path, open_ones, &fd);
        *slash = '/';
        TRY(st);
        if (snprintf(path, sizeof path, "/proc/self/fd/%d/%s", fd, slash + 1) <= MOST) {
            memcpy(address->path, path, sizeof path);
            snprintf(address->text, sizeof address->text, "%s%s", IPC, path);
            return ST_OK;
        }
    }
    return FAIL(ST_CONFIG,
                "endpoint \"%s\": the file's name is too long for a socket; choose a shorter one "
                "for prepd.endpoint (workers and control append up to 8 bytes)",
                address->text);
}

void endpoint_folders_done(endpoint_folders *open_ones)
{
    for (int i = 0; i < open_ones->count; i++)
        close(open_ones->fd[i]);
    free(open_ones->fd);
    *open_ones = (endpoint_folders){0};
}

static status socket_address(const char *path, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof out->sun_path)
        return FAIL(ST_INTERNAL, "the path %s is too long for a socket's address", path);
    memcpy(out->sun_path, path, strlen(path));
    return ST_OK;
}

status endpoint_listen_private(const endpoint *address, int backlog, int *out_fd)
{
    struct sockaddr_un place;
    TRY(socket_address(address->path, &place));
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return FAIL(ST_OS, "cannot make a socket: %s", strerror(errno));
    /* The file gets the mode of the descriptor when it is made. */
    if (fchmod(fd, S_IRUSR | S_IWUSR) != 0 ||
        bind(fd, (const struct sockaddr *)&place, sizeof place) != 0 || listen(fd, backlog) != 0) {
        const int failed = errno;
        close(fd);
        return failed == EADDRINUSE ? endpoint_in_use(address->text)
                                    : FAIL_IN(ST_CANT_CREATE, address->path,
                                              "cannot listen on this socket: %s", strerror(failed));
    }
    *out_fd = fd;
    return ST_OK;
}

/* *out_failed: the error of a connection to the socket, 0 if a process listens. */
static status probe_socket(const endpoint *whose, int *out_failed)
{
    struct sockaddr_un address;
    TRY(socket_address(whose->path, &address));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return FAIL(ST_OS, "cannot make a socket: %s", strerror(errno));
    int failed = connect(fd, (const struct sockaddr *)&address, sizeof address) != 0 ? errno : 0;
    close(fd);
    *out_failed = failed == EAGAIN ? 0 : failed; /* EAGAIN: it listens, but its queue is full */
    return ST_OK;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t size = strlen(text), tail = strlen(end);
    return size >= tail && strcmp(text + size - tail, end) == 0;
}

/* Says which user and group may use the socket, as far as this user may know that. */
static status no_permission(const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return FAIL_IN(ST_CONFIG, path,
                       "this user may not enter the folder of the socket: run this as the user of "
                       "prepd serve, or as a member of a group that may");
    const bool group = info.st_mode & S_IWGRP, control = ends_with(path, CONTROL);
    return FAIL_IN(ST_CONFIG, path,
                   "this user may not write to the socket (user %u, group %u, mode %03o), which "
                   "connecting requires: run this as that user%s",
                   (unsigned)info.st_uid, (unsigned)info.st_gid, (unsigned)info.st_mode & 0777,
                   control ? " or as root, since control belongs to no one else"
                   : group ? " or a member of that group (usermod -aG, then log in again)"
                           : "; prepd serve under umask 007 admits its group too");
}

status wire_listens(const char *text)
{
    endpoint address;
    endpoint_folders folders = {0};
    int failed = 0;
    TRY(endpoint_parse(text, &address));
    const char *path = text + sizeof IPC - 1; /* as the user wrote it */
    status st = address.is_ipc ? endpoint_shorten(&address, &folders) : ST_OK;
    if (st == ST_OK && address.is_ipc)
        st = probe_socket(&address, &failed);
    if (st == ST_OK && failed == EACCES)
        st = no_permission(path);
    else if (st == ST_OK && failed == ECONNREFUSED)
        st = FAIL_IN(ST_UNAVAILABLE, path,
                     "no process listens on this socket: prepd serve has died; start it again");
    else if (st == ST_OK && failed)
        st = FAIL_IN(ST_UNAVAILABLE, path,
                     "there is no socket (%s): prepd serve is not running, or has another "
                     "prepd.endpoint",
                     strerror(failed));
    endpoint_folders_done(&folders);
    return st;
}

/* The error of binding the address, 0 if it is free. The socket does not listen, so no one can
 * connect to it before it is closed again. Addresses that are not numeric are left to the bind
 * itself. */
static int tcp_bind_fails(const endpoint *address)
{
    static const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                          .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV};
    char host[256], port[16];
    struct addrinfo *found = NULL;
    const char *name = address->text + sizeof TCP - 1, *colon = strrchr(name, ':');
    const int bracket = name[0] == '[', any = strncmp(name, "*:", 2) == 0;
    snprintf(host, sizeof host, "%.*s", (int)(colon - name) - 2 * bracket, name + bracket);
    snprintf(port, sizeof port, "%d", address->port);
    if (getaddrinfo(any ? NULL : host, port, &hints, &found) != 0)
        return 0;
    const int on = 1, fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int failed = 0;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, found->ai_addr, found->ai_addrlen) != 0)
        failed = errno;
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
    return failed;
}

status endpoint_unused(const char *text, const endpoint *parsed)
{
    endpoint address = *parsed;
    endpoint_folders folders = {0};
    if (!address.is_ipc)
        return tcp_bind_fails(&address) == EADDRINUSE ? endpoint_in_use(text) : ST_OK;
    status st = endpoint_shorten(&address, &folders);
    if (st == ST_OK)
        st = endpoint_clear_ipc(&address);
    endpoint_folders_done(&folders);
    return st;
}

status endpoint_in_use(const char *text)
{
    return FAIL(ST_UNAVAILABLE,
                "%s is in use by another process; stop it or choose another prepd.endpoint", text);
}

/* Checks that a socket can be made at this path, which does not exist yet. */
static status folder_of(const char *path)
{
    char folder[ENDPOINT_PATH];
    const char *slash = strrchr(path, '/');
    const size_t count = slash ? (size_t)(slash - path) + 1 : 0; /* "/" stays */
    memcpy(folder, count ? path : "./", count ? count : 2);
    folder[count ? count : 2] = 0;
    if (access(folder, W_OK | X_OK) == 0)
        return ST_OK;
    return FAIL_IN(ST_CANT_CREATE, folder,
                   "no socket can be made in this folder: %s; make the folder, or choose another "
                   "prepd.endpoint",
                   strerror(errno));
}

status endpoint_clear_ipc(const endpoint *address)
{
    struct stat info;
    int failed;
    if (lstat(address->path, &info) != 0)
        return folder_of(address->path);
    if (!S_ISSOCK(info.st_mode))
        return FAIL_IN(
            ST_CANT_CREATE, address->path,
            "the file exists and is not a socket; choose another prepd.endpoint or move it away");
    TRY(probe_socket(address, &failed));
    if (failed == ENOENT)
        return ST_OK;
    if (failed == ECONNREFUSED) {
        if (unlink(address->path) != 0 && errno != ENOENT)
            return FAIL_IN(ST_CANT_CREATE, address->path, "cannot remove the stale socket: %s",
                           strerror(errno));
        return ST_OK;
    }
    if (failed == 0)
        return FAIL_IN(
            ST_UNAVAILABLE, address->path,
            "this socket is in use by a running daemon; stop it or choose another prepd.endpoint");
    return FAIL_IN(ST_CANT_CREATE, address->path, "cannot tell whether a process listens there: %s",
                   strerror(failed));
}

status wire_reachable(const char *text, char **out)
{
    static const char *const every[] = {"tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:"};
    endpoint address;
    char *reachable = NULL;
    TRY(endpoint_parse(text, &address));
    for (size_t i = 0; i < sizeof every / sizeof *every && !reachable; i++)
        if (strncmp(address.text, every[i], strlen(every[i])) == 0 &&
            asprintf(&reachable, "tcp://127.0.0.1:%d", address.port) < 0)
            return FAIL(ST_NO_MEMORY, "no memory for an endpoint");
    if (!reachable)
        reachable = strdup(text);
    *out = reachable;
    return reachable ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for an endpoint");
}

status wire_beside(const char *text, int step, char **out)
{
    endpoint address;
    char *beside = NULL;
    int count;
    TRY(endpoint_parse(text, &address));
    if (address.is_ipc) {
        count = asprintf(&beside, "%s%s", address.text, step == 1 ? WORKERS : CONTROL);
    } else {
        if (address.port + step > 65535)
            return FAIL(ST_CONFIG, "endpoint \"%s\": the %d ports after it must exist too", text,
                        step);
        int host = (int)(strrchr(address.text, ':') - address.text);
        count = asprintf(&beside, "%.*s:%d", host, address.text, address.port + step);
    }
    if (count < 0)
        return FAIL(ST_NO_MEMORY, "no memory for an endpoint");
    *out = beside;
    return ST_OK;
}
