/* http_address.h: HOST:PORT as a socket's address. Internal to common/http. */
#ifndef TESSERA_COMMON_HTTP_ADDRESS_H
#define TESSERA_COMMON_HTTP_ADDRESS_H

#include <sys/socket.h>

#include "common/http/http.h"

/* CONFIG if the address has another form than http.h names, or may not be listened on. */
WARN_UNUSED status http_address(const http_place *place, struct sockaddr_storage *out);

#endif
