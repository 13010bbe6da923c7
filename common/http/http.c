/* SPDX-License-Identifier: Apache-2.0 */
/* http.c: libmicrohttpd without threads, and limits on its connections. libmicrohttpd closes an
 * idle connection by itself, but one that sends a byte now and then is never idle; so every
 * connection is cut after LIFE_NS, and the oldest one when there are more than KEPT. */
#include "common/http/http.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <microhttpd.h>

#include "common/base/clock.h"

enum { KEPT = 32, ACCEPTED = 64, CONNECTION_BYTES = 8192 };
static const int64_t LIFE_NS = 5000000000; /* time for a connection's request and answer */

typedef struct {
    int fd; /* libmicrohttpd's; -1: a free place */
    bool cut;
    int64_t since_ns;
} visit;

struct http {
    struct MHD_Daemon *daemon;
    http_handler handle;
    void *user;
    int fd;
    visit visits[ACCEPTED];
};

/* Cuts a connection. libmicrohttpd then reads its end and closes it. */
static void cut_visit(visit *request)
{
    request->cut = true;
    (void)shutdown(request->fd, SHUT_RDWR);
}

/* Cuts the oldest connection if more than KEPT are open. */
static void make_room(http *server)
{
    visit *oldest = NULL;
    size_t kept = 0;
    for (size_t i = 0; i < ACCEPTED; i++) {
        visit *request = &server->visits[i];
        if (request->fd < 0 || request->cut)
            continue;
        kept++;
        if (!oldest || request->since_ns < oldest->since_ns)
            oldest = request;
    }
    if (kept > KEPT)
        cut_visit(oldest);
}

static void came_or_went(void *user, struct MHD_Connection *connection, void **mine,
                         enum MHD_ConnectionNotificationCode what)
{
    http *server = user;
    visit *request = *mine;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (request)
            request->fd = -1;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    for (size_t i = 0; info && !request && i < ACCEPTED; i++)
        if (server->visits[i].fd < 0)
            request = &server->visits[i];
    *mine = request;
    if (!request)
        return;
    *request = (visit){.fd = info->connect_fd, .since_ns = clock_ns()};
    make_room(server);
}

static enum MHD_Result answer_request(void *user, struct MHD_Connection *connection,
                                      const char *path, const char *method, const char *version,
                                      const char *data, size_t *data_size, void **state)
{
    http *server = user;
    char *text = NULL;
    const char *type = "text/plain; version=0.0.4; charset=utf-8";
    size_t size = 0;
    int code = MHD_HTTP_METHOD_NOT_ALLOWED;
    (void)version, (void)data, (void)state;
    if (*data_size > 0) { /* a request body, which is ignored */
        *data_size = 0;
        return MHD_YES;
    }
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return MHD_NO;
    /* libmicrohttpd leaves the body out of its answer to HEAD. */
    if (strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0)
        code = server->handle(server->user, path, file, &type);
    if (fclose(file) != 0) {
        free(text);
        return MHD_NO;
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(text);
        return MHD_NO;
    }
    enum MHD_Result good = MHD_add_response_header(response, "Content-Type", type);
    if (good == MHD_YES)
        good = MHD_add_response_header(response, "Connection", "close");
    if (good == MHD_YES)
        good = MHD_queue_response(connection, (unsigned)code, response);
    MHD_destroy_response(response);
    return good;
}

/* Binds here and not in libmicrohttpd, which may lose the reason for which an address is refused.
 * An IPv6 address that stands for all of this machine's takes IPv4 too, as people expect.
 * Returns the socket, or -1 with errno. */
static int listen_at(const struct sockaddr_storage *to)
{
    const bool six = to->ss_family == AF_INET6;
    const socklen_t size = six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    const int on = 1,
              only_six =
                  six && !IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)to)->sin6_addr);
    const int fd = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        (!six || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_six, sizeof only_six) == 0) &&
        bind(fd, (const struct sockaddr *)to, size) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

status http_open(const http_place *place, http_handler handle, void *user, http **out)
{
    struct sockaddr_storage to;
    TRY(http_address(place, &to));
    http *server = calloc(1, sizeof(*server));
    if (!server)
        return FAIL(ST_NO_MEMORY, "no memory for an HTTP daemon");
    *server = (http){.handle = handle, .user = user, .fd = -1};
    for (size_t i = 0; i < ACCEPTED; i++)
        server->visits[i].fd = -1;
    const int fd = listen_at(&to); /* libmicrohttpd closes it */
    if (fd >= 0)
        server->daemon = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, answer_request, server,
                                          MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                                          (unsigned)ACCEPTED, MHD_OPTION_NOTIFY_CONNECTION,
                                          came_or_went, server, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                          (size_t)CONNECTION_BYTES, MHD_OPTION_END);
    const union MHD_DaemonInfo *info =
        server->daemon ? MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    if (!info) {
        const int error = errno;
        http_close(&server);
        return FAIL(ST_UNAVAILABLE, "cannot listen on %s %s: %s", place->option, place->address,
                    strerror(error));
    }
    server->fd = info->epoll_fd;
    *out = server;
    return ST_OK;
}

void http_close(http **held)
{
    http *server = *held;
    if (!server)
        return;
    if (server->daemon)
        MHD_stop_daemon(server->daemon);
    free(server);
    *held = NULL;
}

int http_fd(const http *server)
{
    return server ? server->fd : -1;
}

void http_run(http *server)
{
    if (!server)
        return;
    const int64_t now = clock_ns();
    for (size_t i = 0; i < ACCEPTED; i++)
        if (server->visits[i].fd >= 0 && !server->visits[i].cut &&
            now - server->visits[i].since_ns > LIFE_NS)
            cut_visit(&server->visits[i]);
    (void)MHD_run(server->daemon);
}
