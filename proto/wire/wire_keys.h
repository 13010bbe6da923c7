/* SPDX-License-Identifier: Apache-2.0 */
/* wire_keys.h: the CURVE keys of one end of a connection, and the list of clients that a daemon
 * admits. Private to wire*.c.
 *
 *   the daemon's folder   daemon.key  daemon.pub  client.key  allowed  NAME/ ...
 *   a client's folder     client.key  daemon.pub
 *
 * A .key file holds the public and the secret key, a line each; daemon.pub holds one public key.
 * `allowed` is described below. A key is 40 characters of Z85 (ZeroMQ RFC 32). */
#ifndef TESSERA_PROTO_WIRE_KEYS_H
#define TESSERA_PROTO_WIRE_KEYS_H

#include "proto/wire/wire.h"

typedef struct wire_keys wire_keys;

/* What to tell someone whose keys are missing or refused. Keys that were made on any other machine
 * than the daemon's are known to no daemon. */
#define WIRE_KEYS_REMEDY                                                                           \
    "on the daemon's machine run prepd keygen --out FOLDER --client NAME (FOLDER is its "          \
    "prepd.keys), and copy FOLDER/NAME here"

void wire_keys_free(wire_keys **held);
/* Sets the keys of a tcp socket. Call it before bind or connect; name is for errors. */
WARN_UNUSED status wire_keys_apply(const wire_keys *keys, void *socket, const char *name);

/* Answers ZeroMQ's authentication requests (ZAP, RFC 27) for the daemon. Handshakes wait until
 * wire_keys_answer is called, which never blocks. */
void *wire_keys_socket(const wire_keys *keys); /* to be polled; NULL unless listening */
void wire_keys_answer(wire_keys *keys);
/* Sets key, key_name and roles of a peer whose handshake the daemon has admitted with this key: the
 * User-Id that wire_keys_answer gave its connection. NULL, and a key that is no longer in
 * `allowed`, give no role. */
void wire_keys_describe(const wire_keys *keys, const char *key, wire_peer *inout_peer);
/* --- the file `allowed`, which lists the keys that a daemon admits and the roles of each ---
 *
 *   KEY NAME [ROLE[,ROLE ..]]    # comment
 *
 * KEY is 40 characters of Z85. NAME has no blank in it and is not the name of a role; a key alone
 * on its line is "unnamed". A ROLE is rows, work, control or trusted; without any the key has rows
 * alone.
 * Roles are separated by commas or blanks. A key on several lines has the roles of all of them, so
 * a role is given by adding a line. */

typedef struct allowed_key {
    char key[WIRE_KEY_TEXT];
    char name[WIRE_KEY_NAME];
    unsigned roles; /* of WIRE_GIVEN */
} allowed_key;

/* All zeros is the empty list. */
typedef struct allowed_list {
    allowed_key *entry; /* [count] */
    size_t count;
} allowed_list;

/* Whether text is a key. */
bool allowed_is_key(const char *text);
/* Adds what one line says, if it says anything. `path` and `number` are its place for errors
 * (ST_CONFIG), which say what the line must look like. */
WARN_UNUSED status allowed_take_line(allowed_list *list, span line, const char *path,
                                     int64_t number);
/* Reads FOLDER/allowed. ST_NO_INPUT, with this remedy, if it cannot be read. ST_CONFIG for a line
 * that is wrong, and if another user than root and that of this process owns the file or the folder
 * or may write to it: that user could give roles. A folder with the sticky bit may be open to all,
 * since there only the owner of `allowed` can replace it. After a failure *out is as it was. */
WARN_UNUSED status allowed_read(const char *folder, const char *remedy, allowed_list *out);
/* NULL if the key is not in the list. */
const allowed_key *allowed_find(const allowed_list *list, const char *key);
void allowed_done(allowed_list *list);
/* Adds a line to FOLDER/allowed, which is made if it is not there. After a failure, such as a full
 * disk, the file is as it was. ST_CANT_CREATE, ST_IO. */
WARN_UNUSED status allowed_append(const char *folder, const char *key, const char *name,
                                  unsigned roles);

#endif
