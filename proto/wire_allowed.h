/* wire_allowed.h: the file `allowed`, which lists the keys that a daemon admits and the roles of
 * each. Private to wire*.c.
 *
 *   KEY NAME [ROLE[,ROLE ..]]    # comment
 *
 * KEY is 40 characters of Z85. NAME has no blank in it and is not the name of a role; a key alone
 * on its line is "unnamed". A ROLE is rows, work, control or trusted; without any the key has rows
 * alone.
 * Roles are separated by commas or blanks. A key on several lines has the roles of all of them, so
 * a role is given by adding a line. */
#ifndef TESSERA_PROTO_WIRE_ALLOWED_H
#define TESSERA_PROTO_WIRE_ALLOWED_H

#include "proto/wire.h"

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
