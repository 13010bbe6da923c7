/* SPDX-License-Identifier: Apache-2.0 */
/* wire_allowed.c: the roles, what a peer without one is answered, and the file `allowed`, which is
 * read and gets more lines here. */
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
#include "common/base/words.h"
#include "proto/wire/wire.h"

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

/* --- the file --- */

enum { KEY_BYTES = 32, SHOWN = 40 };

static const char LINE_FORM[] = "KEY NAME, then any of " WIRE_ROLE_NAMES " separated by commas";

bool allowed_is_key(const char *text)
{
    uint8_t bytes[KEY_BYTES];
    return strlen(text) == WIRE_KEY_TEXT - 1 && zmq_z85_decode(bytes, text) != NULL;
}

/* Takes the next word off the line; one without bytes if there is none. "#" before a word begins a
 * comment. */
static span next_word(span *line, const char *separators)
{
    size_t from = 0, to;
    while (from < line->size && line->data[from] && strchr(separators, line->data[from]))
        from++;
    if (from < line->size && line->data[from] == '#')
        from = line->size;
    for (to = from; to < line->size; to++)
        if (line->data[to] && strchr(separators, line->data[to]))
            break;
    const span word = span_of(line->data + from, to - from);
    *line = span_of(line->data + to, line->size - to);
    return word;
}

/* The word as it is shown in an error. */
static visible_text show_word(span word)
{
    char text[SHOWN + 1];
    const size_t size = word.size < SHOWN ? word.size : SHOWN;
    for (size_t i = 0; i < size; i++)
        text[i] = word.data[i] ? (char)word.data[i] : 1; /* a zero would end the text */
    text[size] = 0;
    return escape_text(text);
}

/* Reads the words after the key. */
static status read_rest(span line, const char *path, int64_t number, allowed_key *out)
{
    static const char blanks[] = " \t\r\n", blanks_and_commas[] = " \t\r\n,";
    span word = next_word(&line, blanks);
    if (wire_role_of((const char *)word.data, word.size))
        return FAIL_AT(ST_CONFIG, path, number, -1,
                       "the role \"%s\" stands where the key's name must: expected %s",
                       show_word(word).text, LINE_FORM);
    if (word.size >= sizeof out->name)
        return FAIL_AT(ST_CONFIG, path, number, -1, "the name has %zu bytes; at most %zu fit",
                       word.size, sizeof out->name - 1);
    for (size_t i = 0; i < word.size; i++)
        if (word.data[i] < ' ' || word.data[i] == 127)
            return FAIL_AT(ST_CONFIG, path, number, -1, "the name \"%s\" has a control character",
                           show_word(word).text);
    if (word.size > 0) {
        memcpy(out->name, word.data, word.size);
        out->name[word.size] = 0;
    }
    while ((word = next_word(&line, blanks_and_commas)).size > 0) {
        const unsigned role = wire_role_of((const char *)word.data, word.size);
        if (!role)
            return FAIL_AT(ST_CONFIG, path, number, -1,
                           "there is no role \"%s\": expected %s; put # before a comment",
                           show_word(word).text, LINE_FORM);
        out->roles |= role;
    }
    if (!out->roles)
        out->roles = WIRE_ROWS;
    return ST_OK;
}

static status add_key(allowed_list *list, const allowed_key *added)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->entry[i].key, added->key) == 0) {
            list->entry[i].roles |= added->roles;
            return ST_OK;
        }
    allowed_key *more = realloc(list->entry, (list->count + 1) * sizeof *more);
    if (!more)
        return FAIL(ST_NO_MEMORY, "no memory for %zu keys", list->count + 1);
    list->entry = more;
    list->entry[list->count++] = *added;
    return ST_OK;
}

status allowed_take_line(allowed_list *list, span line, const char *path, int64_t number)
{
    allowed_key read = {.name = "unnamed"};
    const span word = next_word(&line, " \t\r\n");
    if (word.size == 0)
        return ST_OK;
    if (word.size == sizeof read.key - 1)
        memcpy(read.key, word.data, word.size);
    if (!allowed_is_key(read.key))
        return FAIL_AT(ST_CONFIG, path, number, -1,
                       "expected a key of %d characters (Z85): a line is %s", WIRE_KEY_TEXT - 1,
                       LINE_FORM);
    TRY(read_rest(line, path, number, &read));
    return add_key(list, &read);
}

/* Refuses what another user could change, or a file that another user could put there. */
static status check_writers(const char *path, const struct stat *info)
{
    const bool sticky = S_ISDIR(info->st_mode) && (info->st_mode & S_ISVTX);
    if (info->st_uid != 0 && info->st_uid != geteuid())
        return FAIL_IN(ST_CONFIG, path,
                       "belongs to user %u, who could let anyone in: run chown %u on it",
                       (unsigned)info->st_uid, (unsigned)geteuid());
    if ((info->st_mode & (S_IWGRP | S_IWOTH)) && !sticky)
        return FAIL_IN(ST_CONFIG, path,
                       "other users may write to it (mode %03o) and let anyone in: run chmod go-w "
                       "on it",
                       (unsigned)(info->st_mode & 0777));
    return ST_OK;
}

static status check_list(const char *folder, const char *path, FILE *file)
{
    struct stat info;
    if (stat(folder, &info) != 0)
        return FAIL_IN(ST_NO_INPUT, folder, "cannot be read: %s", strerror(errno));
    TRY(check_writers(folder, &info));
    if (fstat(fileno(file), &info) != 0)
        return FAIL_IN(ST_NO_INPUT, path, "cannot be read: %s", strerror(errno));
    return check_writers(path, &info);
}

status allowed_read(const char *folder, const char *remedy, allowed_list *out)
{
    char path[PATH_MAX + 32], *line = NULL;
    size_t room = 0;
    ssize_t size;
    allowed_list list = {0};
    status st = ST_OK;
    snprintf(path, sizeof path, "%s/allowed", folder);
    FILE *file = fopen(path, "re");
    if (!file)
        return FAIL_IN(ST_NO_INPUT, path, "cannot be read: %s; %s", strerror(errno), remedy);
    st = check_list(folder, path, file);
    for (int64_t number = 1; st == ST_OK && (size = getline(&line, &room, file)) >= 0; number++)
        st = allowed_take_line(&list, span_of(line, (size_t)size), path, number);
    if (st == ST_OK && !feof(file))
        st = FAIL_IN(ST_IO, path, "cannot be read to its end: %s", strerror(errno));
    free(line);
    fclose(file);
    if (st == ST_OK)
        *out = list;
    else
        allowed_done(&list);
    return st;
}

const allowed_key *allowed_find(const allowed_list *list, const char *key)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->entry[i].key, key) == 0)
            return &list->entry[i];
    return NULL;
}

void allowed_done(allowed_list *list)
{
    free(list->entry);
    *list = (allowed_list){0};
}

status allowed_append(const char *folder, const char *key, const char *name, unsigned roles)
{
    char path[PATH_MAX + 32], words[WIRE_ROLES_TEXT],
        line[WIRE_KEY_TEXT + WIRE_KEY_NAME + WIRE_ROLES_TEXT + 4], last = '\n';
    struct stat info;
    snprintf(path, sizeof path, "%s/allowed", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        return FAIL_IN(ST_CANT_CREATE, path, "cannot be opened: %s", strerror(errno));
    int failed = fstat(fd, &info) == 0 ? 0 : errno;
    if (!failed && info.st_size > 0 && pread(fd, &last, 1, info.st_size - 1) < 0)
        failed = errno;
    wire_roles_print(roles, words);
    /* An editor may have left the last line without an end. */
    snprintf(line, sizeof line, "%s%s %s %s\n", last == '\n' ? "" : "\n", key, name, words);
    if (!failed && !(file_write_all(fd, line, strlen(line)) && fsync(fd) == 0)) {
        failed = errno;
        (void)!ftruncate(fd, info.st_size); /* removes what was written of the line */
    }
    if (close(fd) != 0 && !failed)
        failed = errno;
    return failed ? FAIL_IN(ST_IO, path, "cannot be written: %s", strerror(failed)) : ST_OK;
}
