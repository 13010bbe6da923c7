/* SPDX-License-Identifier: Apache-2.0 */
/* http_absent.c: the door in a build without libmicrohttpd. */
#include "common/http/http.h"

status http_open(const http_place *place, http_handler handle, void *user, http **out)
{
    struct sockaddr_storage to;
    (void)handle, (void)user, (void)out;
    TRY(http_address(place, &to));
    return FAIL(ST_UNAVAILABLE,
                "%s is set, but this program was built without libmicrohttpd: install its "
                "development package (libmicrohttpd-dev), run cmake again and build",
                place->option);
}

void http_close(http **server)
{
    *server = NULL;
}

int http_fd(const http *server)
{
    (void)server;
    return -1;
}

void http_run(http *server)
{
    (void)server;
}
