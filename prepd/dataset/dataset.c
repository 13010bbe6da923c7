/* dataset.c: what can be said of the images of any data set, from its vtable alone. */
#include "prepd/dataset/dataset.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prepd/dataset/beneath.h"
#include "prepd/dataset/file_error.h"

hash128 dataset_contents(const dataset *set)
{
    return set->adapter->contents ? set->adapter->contents(set) : set->adapter->identity(set);
}

void dataset_image_place(const dataset *set, int64_t index, image_place *out)
{
    out->offset = 0;
    out->bytes = -1;
    out->video = false;
    out->n_frames = 0;
    out->fps = 0;
    if (set->adapter->place)
        set->adapter->place(set, index, out);
    else
        snprintf(out->path, sizeof out->path, "%s", set->adapter->image_path(set, index));
}

bool dataset_image_has(const dataset *set, int64_t index, const char *path)
{
    image_place place;
    dataset_image_place(set, index, &place);
    const size_t length = strlen(place.path);
    if (place.n_frames == 0)
        return strcmp(path, place.path) == 0;
    if (strncmp(path, place.path, length) != 0 || path[length] != '/')
        return false;
    for (int32_t k = 0; k < place.n_frames; k++)
        if (strcmp(path + length + 1, set->adapter->frame(set, index, k)) == 0)
            return true;
    return false;
}

/* Adds the size of a file and its time of change. False if it cannot be read: then a worker could
 * not read it either, and so recorded nothing of it. *out_trouble: nobody can tell just now. */
static bool add_stat(const char *path, int64_t *bytes, int64_t *mtime_ns, bool *out_trouble)
{
    struct stat info;
    if (stat(path, &info) != 0 || (S_ISREG(info.st_mode) && access(path, R_OK) != 0)) {
        *out_trouble = !file_error_is_its_own(errno);
        return false;
    }
    if (!S_ISREG(info.st_mode))
        return false;
    const int64_t mtime = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
    *bytes += (int64_t)info.st_size;
    *mtime_ns = mtime > *mtime_ns ? mtime : *mtime_ns;
    return true;
}

void dataset_image_stat(const dataset *set, int64_t index, int64_t *out_bytes,
                        int64_t *out_mtime_ns)
{
    char path[PATH_MAX + PLACE_PATH];
    image_place place;
    int64_t bytes = 0, mtime_ns = 0;
    bool there = true, trouble = false;
    dataset_image_place(set, index, &place);
    for (int32_t k = 0; there && k < (place.n_frames ? place.n_frames : 1); k++) {
        snprintf(path, sizeof path, "%s/%s%s%s", set->adapter->root(set), place.path,
                 place.n_frames ? "/" : "",
                 place.n_frames ? set->adapter->frame(set, index, k) : "");
        there = add_stat(path, &bytes, &mtime_ns, &trouble);
    }
    *out_bytes = trouble ? -1 : !there ? 0 : place.bytes >= 0 ? place.bytes : bytes;
    *out_mtime_ns = there ? mtime_ns : 0;
}

const char *dataset_holder(const dataset *set, int64_t index)
{
    return set->adapter->holder ? set->adapter->holder(set, index) : set->adapter->root(set);
}

int dataset_image_open(const dataset *set, int64_t index, const char *path, int flags)
{
    char full[PATH_MAX + PLACE_PATH];
    const char *holder = dataset_holder(set, index), *root = set->adapter->root(set);
    if (strcmp(holder, root) == 0)
        return beneath_open(root, path, flags);
    const size_t length = strlen(holder);
    snprintf(full, sizeof full, "%s%s%s", root, root[strlen(root) - 1] == '/' ? "" : "/", path);
    if (strncmp(full, holder, length) == 0 && full[length] == '/')
        return beneath_open(holder, full + length + 1, flags);
    errno = EXDEV;
    return -1;
}

void dataset_close(dataset **set)
{
    if (!set || !*set)
        return;
    (*set)->adapter->close(*set);
    *set = NULL;
}

sample_place dataset_sample_place(const dataset *set, int64_t number)
{
    const dataset_part *parts = NULL;
    const int count = set->adapter->parts ? set->adapter->parts(set, &parts) : 0;
    sample_place place = {0, set->adapter->chunk ? set->adapter->chunk(set, number) : -1};
    while (place.source < count && number >= parts[place.source].first + parts[place.source].count)
        place.source++;
    return place;
}
