/* SPDX-License-Identifier: Apache-2.0 */
/* http_address.c: reads HOST:PORT. Names other than localhost are not looked up: which address a
 * name has today must not decide who can read. */
#include "common/http/http.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

enum { HOST_MAX = 64, LOOPBACK_NET = 127 };

static bool read_six(const char *host, size_t size, struct in6_addr *out)
{
    char inner[HOST_MAX];
    if (size < 2 || host[0] != '[' || host[size - 1] != ']')
        return false;
    memcpy(inner, host + 1, size - 2);
    inner[size - 2] = 0;
    return inet_pton(AF_INET6, inner, out) == 1;
}

static bool read_address(const char *address, struct sockaddr_storage *out)
{
    struct sockaddr_in *four = (struct sockaddr_in *)out;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    const char *colon = strrchr(address, ':');
    char host[HOST_MAX], *end;
    const size_t size = colon ? (size_t)(colon - address) : 0;
    const long port = colon ? strtol(colon + 1, &end, 10) : 0;
    *out = (struct sockaddr_storage){0};
    if (size == 0 || size >= sizeof host || port < 1 || port > 65535 || *end)
        return false;
    memcpy(host, address, size);
    host[size] = 0;
    if (read_six(host, size, &six->sin6_addr)) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)port);
        return true;
    }
    four->sin_family = AF_INET;
    four->sin_port = htons((uint16_t)port);
    return inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host,
                     &four->sin_addr) == 1;
}

static bool is_loopback(const struct sockaddr_storage *at)
{
    if (at->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)at)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24 == LOOPBACK_NET;
}

status http_address(const http_place *place, struct sockaddr_storage *out)
{
    if (!read_address(place->address, out))
        return FAIL(ST_CONFIG,
                    "%s is \"%s\"; expected HOST:PORT, where HOST is localhost, an IPv4 address, "
                    "or an IPv6 address in brackets",
                    place->option, place->address);
    if (!place->any_address && !is_loopback(out))
        return FAIL(ST_CONFIG,
                    "%s is \"%s\", which other machines can reach, and the figures have neither a "
                    "password nor encryption: use a loopback address, or set metrics.any_address "
                    "to true if all who reach it may read them",
                    place->option, place->address);
    return ST_OK;
}

const char *http_audience(const char *address)
{
    struct sockaddr_storage at;
    if (!read_address(address, &at) || is_loopback(&at))
        return NULL;
    return "everyone who reaches this address can read the figures, among them the names of data "
           "and model: there is no password and no encryption";
}
