/* http.h: GET on loopback for those that watch (Prometheus, a health check); the only door to
 * libmicrohttpd. No thread: the dispatcher's loop waits for http_fd and calls http_run, so an
 * answer proves that the loop turns. A connection is one request and at most five seconds; where
 * too many are open the oldest is closed, so that slow ones keep nobody out. */
#ifndef TESSERA_PREPD_SERVE_HTTP_H
#define TESSERA_PREPD_SERVE_HTTP_H

#include <stdio.h>

#include "common/base/status.h"

typedef struct http http;

/* Writes the answer to a path ("/metrics") and returns its HTTP status: 200, 404, 503. */
typedef int (*http_handler)(void *user, const char *path, FILE *out);

/* address: HOST:PORT, HOST 127.x.x.x, localhost or [::1]. ST_CONFIG, ST_UNAVAILABLE (in use). */
WARN_UNUSED status http_open(const char *address, http_handler handle, void *user, http **out);
void http_close(http **h);
int http_fd(const http *h); /* -1 if h is NULL */
void http_run(http *h);

#endif
