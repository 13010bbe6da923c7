/* vqa_zip.c: reads VQAv2 as it is downloaded, with JSON files and pictures inside zip files. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "prepd/dataset/vqa.h"
#include "prepd/dataset/zip.h"

typedef struct pictures {
    vqa *set;
    const char *path;
    int fd;
} pictures;

/* The image id in a name such as .../COCO_train2014_000000000009.jpg; -1 if the name has another
 * form. */
static int64_t id_of(const char *name)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    const char *digits = strrchr(base, '_');
    char *end;
    if (strncmp(base, "COCO_", 5) != 0 || !digits || digits[1] < '0' || digits[1] > '9')
        return -1;
    const long long id = strtoll(digits + 1, &end, 10);
    return strcmp(end, ".jpg") == 0 ? (int64_t)id : -1;
}

static status on_picture(void *user, const zip_member *m)
{
    pictures *k = (pictures *)user;
    vqa *set = k->set;
    const int64_t id = id_of(m->name);
    int64_t at;
    bool is_new;
    zip_picture p = {.bytes = -1};
    if (id < 0)
        return ST_OK;
    if (m->stored) {
        p.bytes = m->bytes;
        TRY(zip_place(k->fd, k->path, m, &p.offset));
    }
    TRY(array_room((void **)&set->places, set->n_places, &set->place_capacity,
                   sizeof *set->places));
    TRY(id_map_put(&set->place_of, id, set->n_places, &at, &is_new));
    if (!is_new)
        return FAIL_IN(ST_BAD_INPUT, k->path, "it has two members for the picture %s", m->name);
    set->places[set->n_places++] = p;
    return ST_OK;
}

status vqa_zip_pictures(vqa *set)
{
    char path[VQA_PATH_MAX + VQA_NAME_MAX];
    snprintf(path, sizeof path, "%s/%s", set->paths.root, set->paths.picture_zip);
    pictures k = {.set = set, .path = path};
    k.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (k.fd < 0)
        return FAIL_IN(ST_NO_INPUT, path, "cannot open: %s", strerror(errno));
    status st = zip_read(path, on_picture, &k);
    close(k.fd);
    if (st == ST_OK && set->n_places == 0)
        st = FAIL_IN(ST_BAD_INPUT, path, "it holds no picture named COCO_*_NUMBER.jpg");
    return st;
}

/* A search for a member of a zip file. The member is read as soon as it is found, because
 * zip_member is only valid during the call. */
typedef struct member_stream {
    const char *path, *member, *key, *without;
    json_each each;
    void *user;
    bool found;
} member_stream;

static status on_member(void *user, const zip_member *m)
{
    member_stream *s = (member_stream *)user;
    zip_stream *z = NULL;
    char source[2 * VQA_PATH_MAX];
    if (s->found || strcmp(m->name, s->member) != 0)
        return ST_OK;
    s->found = true;
    snprintf(source, sizeof source, "%s:%s", s->path, s->member);
    TRY(zip_open(s->path, m, &z));
    status st = json_stream_from(source, zip_next, z, s->key, s->without, s->each, s->user);
    zip_close(&z);
    return st;
}

status vqa_stream(const char *path, const char *member, const char *key, const char *without,
                  json_each each, void *user)
{
    if (!member[0])
        return json_stream_array(path, key, without, each, user);
    member_stream s = {path, member, key, without, each, user, false};
    TRY(zip_read(path, on_member, &s));
    return s.found ? ST_OK : FAIL_IN(ST_BAD_INPUT, path, "it no longer has a member %s", member);
}
