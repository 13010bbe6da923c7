/* http.h: answers GET and HEAD on loopback for programs that watch the daemon (Prometheus, a health
 * check) and for a person with a browser. It is the only door to libmicrohttpd.
 *
 * There is no thread: the dispatcher's loop waits for http_fd and calls http_run, so an answer
 * proves that the loop turns. A connection has one request and at most five seconds. If too many
 * are open, the oldest is closed, so that slow ones cannot keep others out. */
#ifndef TESSERA_PREPD_SERVE_HTTP_H
#define TESSERA_PREPD_SERVE_HTTP_H

#include <stdio.h>

#include "common/base/status.h"

typedef struct http http;

/* Writes the answer to a path ("/metrics") and returns its HTTP status: 200, 404 or 503. *out_type
 * is the Content-Type, which is Prometheus's text unless the handler sets another one (a constant).
 */
typedef int (*http_handler)(void *user, const char *path, FILE *out, const char **out_type);

/* Listens on HOST:PORT, where HOST is 127.x.x.x, localhost or [::1]. CONFIG for another address,
 * UNAVAILABLE if it is in use. */
WARN_UNUSED status http_open(const char *address, http_handler handle, void *user, http **out);
void http_close(http **server);
int http_fd(const http *server); /* -1 if server is NULL */
void http_run(http *server);     /* nothing if server is NULL */

#endif
