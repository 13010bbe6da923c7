/* SPDX-License-Identifier: Apache-2.0 */
/* wire_keys.c: reads keys, answers the daemon's authentication requests, and makes keys (prepd
 * keygen). A client whose public key is in the daemon's list is admitted, any other is refused and
 * counted. */
#include "proto/wire/wire_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "common/base/file.h"
#include "proto/wire/wire_socket.h"

enum {
    KEY_TEXT = WIRE_KEY_TEXT,
    KEY_BYTES = 32,
    LINE_BYTES = 512,
    ZAP_PARTS = 7,
};

struct wire_keys {
    char folder[PATH_MAX];
    bool is_daemon;
    char public_key[KEY_TEXT], secret[KEY_TEXT];
    char server[KEY_TEXT];           /* of a client: the daemon's public key */
    allowed_list allowed;            /* of the daemon */
    void *zap;                       /* REP socket for authentication requests */
    int64_t n_refused;               /* since the last question */
    char refused[WIRE_REFUSED_TEXT]; /* about the last one */
};

/* Reads the first word of the first `count` lines of a file, which must be keys. */
static status read_keys(const char *folder, const char *file, const char *remedy,
                        char (*key)[KEY_TEXT], int count)
{
    char path[PATH_MAX + 32], line[LINE_BYTES];
    status st = ST_OK;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *from = fopen(path, "re");
    if (!from)
        return FAIL_IN(ST_NO_INPUT, path, "cannot be read: %s; %s", strerror(errno), remedy);
    for (int i = 0; i < count && st == ST_OK; i++) {
        char word[KEY_TEXT + 1] = "";
        if (!fgets(line, sizeof line, from) || sscanf(line, "%41s", word) != 1 ||
            !allowed_is_key(word))
            st = FAIL_AT(ST_CONFIG, path, i + 1, -1, "expected a key of 40 characters (Z85)");
        else
            memcpy(key[i], word, KEY_TEXT);
    }
    fclose(from);
    return st;
}

static const char DAEMON_REMEDY[] = "run prepd keygen --out FOLDER as the daemon's user";

/* Refuses a secret key that other users can read. */
static status check_private(const char *folder, const char *file)
{
    char path[PATH_MAX + 32];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (stat(path, &info) == 0 && (info.st_mode & (S_IRWXG | S_IRWXO)))
        return FAIL_IN(ST_CONFIG, path,
                       "other users may read this secret key (mode %03o): run chmod 600",
                       (unsigned)(info.st_mode & 0777));
    return ST_OK;
}

static bool has_file(const char *folder, const char *file)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return access(path, F_OK) == 0;
}

/* What to do about keys that cannot be read. */
static const char *remedy_of(const char *folder, bool daemon)
{
    if (!daemon)
        return WIRE_KEYS_REMEDY;
    return has_file(folder, "client.key") && !has_file(folder, "daemon.key")
               ? "this is a client's folder; name the daemon's, which prepd keygen --out made"
               : DAEMON_REMEDY;
}

static status load_keys(const char *folder, bool daemon, wire_keys **out)
{
    const char *own = daemon ? "daemon.key" : "client.key";
    char pair[2][KEY_TEXT];
    if (!zmq_has("curve"))
        return FAIL(ST_OS, "this libzmq was built without CURVE: keys cannot be used");
    wire_keys *keys = calloc(1, sizeof *keys);
    if (!keys)
        return FAIL(ST_NO_MEMORY, "no memory for keys");
    status st = ST_OK;
    keys->is_daemon = daemon;
    snprintf(keys->folder, sizeof keys->folder, "%s", folder);
    TRY_OR(failed, check_private(folder, own));
    TRY_OR(failed, read_keys(folder, own, remedy_of(folder, daemon), pair, 2));
    memcpy(keys->public_key, pair[0], KEY_TEXT);
    memcpy(keys->secret, pair[1], KEY_TEXT);
    if (daemon)
        TRY_OR(failed, allowed_read(folder, DAEMON_REMEDY, &keys->allowed));
    else
        TRY_OR(failed, read_keys(folder, "daemon.pub", WIRE_KEYS_REMEDY, &keys->server, 1));
    *out = keys;
    return ST_OK;
failed:
    wire_keys_free(&keys);
    return st;
}

void wire_keys_free(wire_keys **held)
{
    wire_keys *keys = *held;
    if (!keys)
        return;
    if (keys->zap)
        zmq_close(keys->zap);
    allowed_done(&keys->allowed);
    explicit_bzero(keys, sizeof *keys);
    free(keys);
    *held = NULL;
}

status wire_keys_apply(const wire_keys *keys, void *socket, const char *name)
{
    static const char domain[] = "tessera";
    const int on = 1;
    int bad;
    if (keys->is_daemon)
        bad = zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &on, sizeof on) |
              zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, domain, sizeof domain - 1) |
              zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret, KEY_TEXT);
    else
        bad = zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, keys->server, KEY_TEXT) |
              zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, keys->public_key, KEY_TEXT) |
              zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret, KEY_TEXT);
    return bad ? FAIL(ST_OS, "cannot set the keys of %s: %s", name, zmq_strerror(zmq_errno()))
               : ST_OK;
}

static status listen_for_requests(wire_keys *keys, void *context)
{
    const int linger = 0;
    keys->zap = zmq_socket(context, ZMQ_REP);
    if (!keys->zap || zmq_setsockopt(keys->zap, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_bind(keys->zap, "inproc://zeromq.zap.01") != 0)
        return FAIL(ST_OS, "cannot listen for authentication requests: %s",
                    zmq_strerror(zmq_errno()));
    return ST_OK;
}

void *wire_keys_socket(const wire_keys *keys)
{
    return keys->zap;
}

status wire_serve_keys(wire *context, const char *folder)
{
    TRY(load_keys(folder, true, &context->keys));
    return listen_for_requests(context->keys, context->context);
}

status wire_use_keys(wire *context, const char *folder)
{
    return load_keys(folder, false, &context->keys);
}

/* Its parts: version, request id, domain, address, identity, mechanism, credentials (RFC 27). */
typedef struct zap_request {
    char part[ZAP_PARTS][256];
    size_t size[ZAP_PARTS];
    int count;
} zap_request;

static bool receive_request(void *socket, zap_request *request)
{
    int more = 1;
    size_t more_size = sizeof more;
    request->count = 0;
    for (int i = 0; more; i++) {
        char rest[256];
        const int slot = i < ZAP_PARTS ? i : ZAP_PARTS - 1;
        char *to = i < ZAP_PARTS ? request->part[slot] : rest;
        int size = zmq_recv(socket, to, sizeof rest - 1, ZMQ_DONTWAIT);
        if (size < 0)
            return false;
        if (size > (int)sizeof rest - 1) /* it was cut; no valid request is that long */
            size = 0;
        if (i < ZAP_PARTS) {
            request->size[i] = (size_t)size;
            request->part[i][size] = 0;
            request->count = i + 1;
        }
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &more_size) != 0)
            return false;
    }
    return true;
}

static void answer_one(wire_keys *keys, const zap_request *request)
{
    char key[KEY_TEXT] = "";
    bool allowed = false;
    if (request->count == ZAP_PARTS && strcmp(request->part[5], "CURVE") == 0 &&
        request->size[6] == KEY_BYTES &&
        zmq_z85_encode(key, (const uint8_t *)request->part[6], KEY_BYTES))
        allowed = allowed_find(&keys->allowed, key) != NULL;
    if (!allowed) {
        keys->n_refused++;
        snprintf(keys->refused, sizeof keys->refused, "key %s from %s is not in %s/allowed",
                 key[0] ? key : "(none)", request->count > 3 ? request->part[3] : "?",
                 keys->folder);
    }
    const char *parts[] = {"1.0",
                           request->count > 1 ? request->part[1] : "",
                           allowed ? "200" : "400",
                           allowed ? "known" : "unknown key",
                           allowed ? key : "", /* User-Id, which comes with every message */
                           ""};
    const int count = sizeof parts / sizeof *parts;
    for (int i = 0; i < count; i++) {
        const size_t size = i == 1 && request->count > 1 ? request->size[1] : strlen(parts[i]);
        if (zmq_send(keys->zap, parts[i], size, ZMQ_DONTWAIT | (i + 1 < count ? ZMQ_SNDMORE : 0)) <
            0)
            return; /* the connection has ended */
    }
}

void wire_keys_answer(wire_keys *keys)
{
    zap_request request;
    while (keys->zap && receive_request(keys->zap, &request))
        answer_one(keys, &request);
}

status wire_reload_keys(wire *context)
{
    wire_keys *keys = context->keys;
    allowed_list list;
    if (!keys || !keys->is_daemon)
        return ST_OK;
    TRY(allowed_read(keys->folder, DAEMON_REMEDY, &list));
    allowed_done(&keys->allowed);
    keys->allowed = list;
    return ST_OK;
}

void wire_keys_describe(const wire_keys *keys, const char *key, wire_peer *inout_peer)
{
    const allowed_key *known = key ? allowed_find(&keys->allowed, key) : NULL;
    snprintf(inout_peer->key, sizeof inout_peer->key, "%s", key ? key : "(none)");
    snprintf(inout_peer->key_name, sizeof inout_peer->key_name, "%s", known ? known->name : "NAME");
    inout_peer->roles = known ? known->roles : 0;
    if (inout_peer->roles & WIRE_CONTROL)
        inout_peer->roles |= WIRE_STATUS;
    if (inout_peer->roles & WIRE_TRUSTED)
        inout_peer->roles |= WIRE_WORK;
}

int64_t wire_keys_were_refused(wire *context, char out[WIRE_REFUSED_TEXT])
{
    wire_keys *keys = context->keys;
    const int64_t n_refused = keys ? keys->n_refused : 0;
    if (keys) {
        memcpy(out, keys->refused, WIRE_REFUSED_TEXT);
        keys->n_refused = 0;
    }
    return n_refused;
}

/* --- keygen: a failure leaves no file that would prevent another try --- */

static bool write_last(int fd, const char *text)
{
    return file_write_all(fd, text, strlen(text)) && fsync(fd) == 0;
}

static void remove_file(const char *folder, const char *file)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    unlink(path);
}

/* flags: O_EXCL to create a new file, O_TRUNC to replace an old one. */
static status write_file(const char *folder, const char *file, int flags, mode_t mode,
                         const char *text)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, mode);
    if (fd < 0)
        return FAIL_IN(ST_CANT_CREATE, path, "cannot be created: %s", strerror(errno));
    int failed = write_last(fd, text) ? 0 : errno;
    if (close(fd) != 0 && !failed)
        failed = errno;
    if (!failed)
        return ST_OK;
    unlink(path);
    return FAIL_IN(ST_IO, path, "cannot be written: %s", strerror(failed));
}

static status check_absent(const char *folder, const char *file, const char *remedy)
{
    char path[PATH_MAX + 32];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    if (lstat(path, &info) != 0)
        return ST_OK;
    return FAIL_IN(ST_CANT_CREATE, path, "keys exist here already: %s", remedy);
}

static status make_pair(const char *folder, const char *file, char public_key[KEY_TEXT])
{
    char secret[KEY_TEXT], text[2 * KEY_TEXT + 64];
    if (zmq_curve_keypair(public_key, secret) != 0)
        return FAIL(ST_OS, "cannot make keys: %s", zmq_strerror(zmq_errno()));
    snprintf(text, sizeof text, "%s public\n%s secret\n", public_key, secret);
    status st = write_file(folder, file, O_EXCL, 0600, text);
    explicit_bzero(secret, sizeof secret);
    explicit_bzero(text, sizeof text);
    return st;
}

static status make_folder(const char *folder)
{
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return FAIL_IN(ST_CANT_CREATE, folder, "the folder cannot be created: %s", strerror(errno));
    return ST_OK;
}

static status write_public(const char *folder, const char *key)
{
    char line[KEY_TEXT + 1];
    snprintf(line, sizeof line, "%s\n", key);
    return write_file(folder, "daemon.pub", O_TRUNC, 0644, line);
}

static status make_client(const char *folder, const char *client, unsigned roles)
{
    char key[KEY_TEXT], server[1][KEY_TEXT], own[PATH_MAX], first[PATH_MAX + 64];
    const size_t length = strlen(client);
    if (length == 0 || length >= WIRE_KEY_NAME || wire_role_of(client, length) ||
        strspn(client, "abcdefghijklmnopqrstuvwxyz"
                       "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != length)
        return FAIL(
            ST_USAGE,
            "--client \"%s\": expected a name of letters, digits, - and _, at most %d, which "
            "is not a role's (" WIRE_ROLE_NAMES ")",
            client, WIRE_KEY_NAME - 1);
    snprintf(first, sizeof first, "first run prepd keygen --out %s, without --client", folder);
    TRY(read_keys(folder, "daemon.pub", first, server, 1));
    snprintf(own, sizeof own, "%s/%s", folder, client);
    TRY(check_absent(
        own, "client.key",
        "choose another --client, or remove this folder and the name's line in allowed"));
    TRY(make_folder(own));
    TRY(make_pair(own, "client.key", key));
    status st = write_public(own, server[0]);
    if (st == ST_OK)
        st = allowed_append(folder, key, client, roles);
    if (st != ST_OK)
        remove_file(own, "client.key");
    return st;
}

static status make_daemon(const char *folder)
{
    static const char remedy[] =
        "choose another --out, or remove this folder if the keys are not in use";
    char daemon[KEY_TEXT], own[KEY_TEXT];
    TRY(check_absent(folder, "daemon.key", remedy));
    TRY(check_absent(folder, "client.key", remedy));
    TRY(make_folder(folder));
    TRY(make_pair(folder, "daemon.key", daemon));
    status st = write_public(folder, daemon);
    if (st == ST_OK)
        st = make_pair(folder, "client.key", own);
    if (st == ST_OK)
        st = allowed_append(folder, own, "client", WIRE_GIVEN & ~(unsigned)WIRE_TRUSTED);
    if (st != ST_OK)
        remove_file(folder, "client.key");
    if (st != ST_OK)
        remove_file(folder, "daemon.key");
    return st;
}

status wire_keys_make(const char *folder, const char *client, unsigned roles)
{
    if (!zmq_has("curve"))
        return FAIL(ST_OS, "this libzmq was built without CURVE: keys cannot be made");
    return client ? make_client(folder, client, roles) : make_daemon(folder);
}

status wire_role_is_given(const char *folder, wire_role role, bool *out)
{
    allowed_list list = {0};
    *out = false;
    TRY(allowed_read(folder, DAEMON_REMEDY, &list));
    for (size_t i = 0; i < list.count; i++)
        *out |= (list.entry[i].roles & (unsigned)role) != 0;
    allowed_done(&list);
    return ST_OK;
}
