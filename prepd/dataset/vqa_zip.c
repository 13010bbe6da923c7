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

static status on_picture(void *user, const zip_member *member)
{
    pictures *images = (pictures *)user;
    vqa *set = images->set;
    const int64_t id = id_of(member->name);
    int64_t at;
    bool is_new;
    zip_picture picture = {.bytes = -1};
    if (id < 0)
        return ST_OK;
    if (member->stored) {
        picture.bytes = member->bytes;
        TRY(zip_place(images->fd, images->path, member, &picture.offset));
    }
    TRY(array_room((void **)&set->places, set->n_places, &set->place_capacity,
                   sizeof *set->places));
    TRY(id_map_put(&set->place_of, id, set->n_places, &at, &is_new));
    if (!is_new)
        return FAIL_IN(ST_BAD_INPUT, images->path, "it has two members for the picture %s",
                       member->name);
    set->places[set->n_places++] = picture;
    return ST_OK;
}

status vqa_zip_pictures(vqa *set)
{
    char path[VQA_PATH_MAX + VQA_NAME_MAX];
    snprintf(path, sizeof path, "%s/%s", set->paths.root, set->paths.picture_zip);
    pictures images = {.set = set, .path = path};
    images.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (images.fd < 0)
        return FAIL_IN(ST_NO_INPUT, path, "cannot open: %s", strerror(errno));
    status st = zip_read(path, on_picture, &images);
    close(images.fd);
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

static status on_member(void *user, const zip_member *member)
{
    member_stream *stream = (member_stream *)user;
    zip_stream *zip = NULL;
    char source[2 * VQA_PATH_MAX];
    if (stream->found || strcmp(member->name, stream->member) != 0)
        return ST_OK;
    stream->found = true;
    snprintf(source, sizeof source, "%s:%s", stream->path, stream->member);
    TRY(zip_open(stream->path, member, &zip));
    status st = json_stream_from(source, zip_next, zip, stream->key, stream->without, stream->each,
                                 stream->user);
    zip_close(&zip);
    return st;
}

status vqa_stream(const char *path, const char *member, const char *key, const char *without,
                  json_each each, void *user)
{
    if (!member[0])
        return json_stream_array(path, key, without, each, user);
    member_stream stream = {path, member, key, without, each, user, false};
    TRY(zip_read(path, on_member, &stream));
    return stream.found ? ST_OK
                        : FAIL_IN(ST_BAD_INPUT, path, "it no longer has a member %s", member);
}
