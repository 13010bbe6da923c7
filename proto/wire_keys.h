/* wire_keys.h: the CURVE keys of one end of a connection, and the list of clients that a daemon
 * admits. Private to wire*.c.
 *
 *   the daemon's folder   daemon.key  daemon.pub  client.key  allowed  NAME/ ...
 *   a client's folder     client.key  daemon.pub
 *
 * A .key file holds the public and the secret key, a line each; daemon.pub holds one public key.
 * `allowed` is described in wire_allowed.h. A key is 40 characters of Z85 (ZeroMQ RFC 32). */
#ifndef TESSERA_PROTO_WIRE_KEYS_H
#define TESSERA_PROTO_WIRE_KEYS_H

#include "proto/wire.h"

typedef struct wire_keys wire_keys;

/* What to tell someone whose keys are missing or refused. Keys that were made on any other machine
 * than the daemon's are known to no daemon. */
#define WIRE_KEYS_REMEDY                                                                           \
    "on the daemon's machine run prepd keygen --out FOLDER --client NAME (FOLDER is its "          \
    "prepd.keys), and copy FOLDER/NAME here"

/* Loads daemon.key and allowed (daemon), or client.key and daemon.pub. ST_NO_INPUT if a file cannot
 * be read, ST_CONFIG if it holds no keys or others may read the secret. */
WARN_UNUSED status wire_keys_load(const char *folder, bool daemon, wire_keys **out);
void wire_keys_free(wire_keys **held);
bool wire_keys_is_daemon(const wire_keys *keys);
/* Sets the keys of a tcp socket. Call it before bind or connect; name is for errors. */
WARN_UNUSED status wire_keys_apply(const wire_keys *keys, void *socket, const char *name);

/* Answers ZeroMQ's authentication requests (ZAP, RFC 27) for the daemon. wire_keys_listen must be
 * called before any other socket of the context is bound. Handshakes wait until wire_keys_answer is
 * called, which never blocks. */
WARN_UNUSED status wire_keys_listen(wire_keys *keys, void *context);
void *wire_keys_socket(const wire_keys *keys); /* to be polled; NULL unless listening */
void wire_keys_answer(wire_keys *keys);
void wire_keys_close(wire_keys *keys);
/* Sets key, key_name and roles of a peer whose handshake the daemon has admitted with this key: the
 * User-Id that wire_keys_answer gave its connection. NULL, and a key that is no longer in
 * `allowed`, give no role. */
void wire_keys_describe(const wire_keys *keys, const char *key, wire_peer *inout_peer);
/* Reads `allowed` again; on failure the old list stays. */
WARN_UNUSED status wire_keys_reload(wire_keys *keys);
/* wire_keys_were_refused. */
int64_t wire_keys_refused(wire_keys *keys, char out[WIRE_REFUSED_TEXT]);

#endif
