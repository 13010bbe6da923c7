/* SPDX-License-Identifier: Apache-2.0 */
/* http.h: answers GET and HEAD for programs that watch one of ours (Prometheus, a health check) and
 * for a person with a browser. It is the only door to libmicrohttpd.
 *
 * There is no thread of its own: someone waits for http_fd and calls http_run. In the daemon that
 * is the dispatcher's loop, so an answer proves that the loop turns; http_thread is for programs
 * without such a loop. A connection has one request and at most five seconds. If too many are open,
 * the oldest is closed, so that slow ones cannot keep others out. */
#ifndef TESSERA_COMMON_HTTP_H
#define TESSERA_COMMON_HTTP_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>

#include "common/base/status.h"

typedef struct http http;

/* Writes the answer to a path ("/metrics") and returns its HTTP status: 200, 404 or 503. *out_type
 * is the Content-Type, which is Prometheus's text unless the handler sets another one (a constant).
 */
typedef int (*http_handler)(void *user, const char *path, FILE *out, const char **out_type);

/* Where to listen. Everything is borrowed until http_close. */
typedef struct http_place {
    const char *option;  /* the option that the address comes from, for messages */
    const char *address; /* HOST:PORT; HOST is localhost, an IPv4 address, or an IPv6 one in [] */
    bool any_address;    /* addresses beyond this machine are allowed */
} http_place;

/* Listens. CONFIG if the address has another form, or is beyond this machine without any_address;
 * UNAVAILABLE if it is in use or not this machine's, or if this build lacks libmicrohttpd. */
WARN_UNUSED status http_open(const http_place *place, http_handler handle, void *user, http **out);
void http_close(http **server);
int http_fd(const http *server); /* -1 if server is NULL */
void http_run(http *server);     /* nothing if server is NULL */

/* Who can read what is told at this address, as words for the log. NULL for loopback, where only
 * this machine can, and for an address that cannot be read. */
const char *http_audience(const char *address);

/* An HTTP door that is served by a separate thread, for a program whose main
 * thread is busy for seconds at a time. The handler runs in that thread. */

typedef struct http_thread http_thread;

/* Listens as http_open does and starts the thread. The thread receives no signals, which so reach
 * the threads that handle them. */
WARN_UNUSED status http_thread_start(const http_place *place, http_handler handle, void *user,
                                     http_thread **out);
/* Ends the thread and closes the door; once it has returned, the handler is no longer called.
 * Accepts a pointer to NULL. */
void http_thread_stop(http_thread **thread);

/* HOST:PORT as a socket's address. Internal to common/http. */

/* CONFIG if the address has another form than http.h names, or may not be listened on. */
WARN_UNUSED status http_address(const http_place *place, struct sockaddr_storage *out);

#endif
