/* wire_roles.c: the names of the roles, and the refusal of a peer that lacks one. */
#include <stdio.h>
#include <string.h>

#include "proto/wire.h"

static const struct {
    wire_role role;
    const char *name;
} given[] = {
    {WIRE_ROWS, "rows"}, {WIRE_WORK, "work"}, {WIRE_CONTROL, "control"}, {WIRE_TRUSTED, "trusted"}};

unsigned wire_role_of(const char *word, size_t size)
{
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (strlen(given[i].name) == size && memcmp(given[i].name, word, size) == 0)
            return given[i].role;
    return 0;
}

status wire_roles_read(const char *text, const char *what, unsigned *out)
{
    unsigned roles = 0;
    for (const char *word = text;; word++) {
        const size_t size = strcspn(word, ",");
        const unsigned role = wire_role_of(word, size);
        if (!role)
            return FAIL(ST_USAGE,
                        "%s \"%s\": expected some of " WIRE_ROLE_NAMES ", separated by commas",
                        what, text);
        roles |= role;
        word += size;
        if (!*word)
            break;
    }
    *out = roles;
    return ST_OK;
}

void wire_roles_print(unsigned roles, char out[WIRE_ROLES_TEXT])
{
    out[0] = 0;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        if (!(roles & given[i].role))
            continue;
        if (out[0])
            strcat(out, ",");
        strcat(out, given[i].name);
    }
}

/* The key lacks this role, which a line of `allowed` can give. */
static status refuse_key(const wire_peer *peer, wire_role role, const char *name)
{
    const unsigned needed = role == WIRE_STATUS ? WIRE_CONTROL : role;
    char one[WIRE_ROLES_TEXT], all[WIRE_ROLES_TEXT];
    wire_roles_print(needed, one);
    wire_roles_print((peer->roles & WIRE_GIVEN) | needed, all);
    return FAIL_IN(ST_CONFIG, name,
                   "this key does not have the role %s. To give it, add this line to the file "
                   "allowed of the daemon's prepd.keys, and let the daemon reload (SIGHUP): "
                   "%s %s %s",
                   one, peer->key, peer->key_name, all);
}

status wire_may(const wire_peer *peer, wire_role role, const char *name)
{
    if (peer->roles & role)
        return ST_OK;
    if (peer->key[0])
        return refuse_key(peer, role, name);
    if (peer->roles & WIRE_STATUS)
        return FAIL_IN(ST_CONFIG, name,
                       "over tcp without keys only status is answered, since every user of this "
                       "machine could send commands: make keys (prepd keygen --out FOLDER) and "
                       "name FOLDER in prepd.keys, or let prepd.endpoint be ipc://PATH");
    return FAIL_IN(ST_CONFIG, name,
                   "control over ipc belongs to the user who runs prepd serve, and to root: run "
                   "this as that user");
}
