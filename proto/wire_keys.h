/* wire_keys.h: CURVE keys of one end of the wire, and who is let in. Private to wire.c.
 *
 *   daemon's folder   daemon.key  daemon.pub  client.key  allowed  NAME/ ...
 *   a client's        client.key  daemon.pub
 *
 * A .key file holds the public and the secret key, a line each; daemon.pub one public key; allowed
 * a public key and a name per line, "#" begins a comment. Keys are 40 characters of Z85. */
#ifndef TESSERA_PROTO_WIRE_KEYS_H
#define TESSERA_PROTO_WIRE_KEYS_H

#include "proto/wire.h"

typedef struct wire_keys wire_keys;

/* Said to who connects: keys made on any other machine are known to no daemon. */
#define WIRE_KEYS_REMEDY                                                                           \
    "on the daemon's machine prepd keygen --out FOLDER --client NAME (FOLDER: its prepd.keys) "    \
    "makes FOLDER/NAME: copy that here"

/* daemon: daemon.key and allowed; else client.key and daemon.pub. ST_NO_INPUT, ST_CONFIG. */
WARN_UNUSED status wire_keys_load(const char *folder, bool daemon, wire_keys **out);
void wire_keys_free(wire_keys **k);
bool wire_keys_is_daemon(const wire_keys *k);
/* Before bind or connect of a tcp socket. */
WARN_UNUSED status wire_keys_apply(const wire_keys *k, void *socket, const char *name);

/* The daemon's handler of ZeroMQ's authentication requests (ZAP, RFC 27): bound before any other
 * socket of the context. A handshake waits until wire_keys_answer, which never blocks. */
WARN_UNUSED status wire_keys_listen(wire_keys *k, void *context);
void *wire_keys_socket(const wire_keys *k); /* NULL unless listening */
void wire_keys_answer(wire_keys *k);
void wire_keys_close(wire_keys *k);
WARN_UNUSED status
wire_keys_reload(wire_keys *k); /* allowed alone; keeps the old list on failure */
int64_t wire_keys_refused(wire_keys *k, char out[WIRE_REFUSED_TEXT]);

#endif
