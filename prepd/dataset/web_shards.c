/* web_shards.c: finds the tars that data.path means. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/compare.h"
#include "common/base/utf8.h"
#include "prepd/dataset/braces.h"
#include "prepd/dataset/webdataset.h"

static status note_shard(webdataset *set, const char *name)
{
    int64_t ignored;
    if (!utf8_valid(name, strlen(name)))
        return FAIL_IN(
            ST_BAD_INPUT, name,
            "the name of the tar is not UTF-8, but the messages to workers are: rename it");
    return name_list_append(&set->shards, name, strlen(name), &ignored);
}

static status add_shard(void *user, const char *path)
{
    webdataset *set = (webdataset *)user;
    const char *under = path + strlen(set->root);
    return note_shard(set, under + (*under == '/'));
}

static status shards_of_folder(webdataset *set, const conf *options)
{
    struct dirent *entry;
    char **names = NULL;
    int64_t count = 0, capacity = 0, others = 0;
    status st = ST_OK;
    DIR *dir = opendir(set->root);
    if (!dir)
        return FAIL_IN(ST_NO_INPUT, set->root, "data.path cannot be read as a folder: %s",
                       strerror(errno));
    while ((entry = readdir(dir))) {
        const size_t size = strlen(entry->d_name);
        if (size < 5 || strcmp(entry->d_name + size - 4, ".tar") != 0)
            continue;
        if (!name_has_split(entry->d_name, size - 4, options->data_split)) {
            others++;
            continue;
        }
        TRY_OR(done, array_room((void **)&names, count, &capacity, sizeof *names));
        names[count] = strdup(entry->d_name);
        if (!names[count++]) {
            st = FAIL(ST_NO_MEMORY, "no memory for a name");
            goto done;
        }
    }
    if (count == 0)
        st = FAIL_IN(
            ST_NO_INPUT, set->root,
            "the folder holds no tar file whose name has data.split \"%s\" as a word (%" PRId64
            " others); data.path may also be one file, or a name with braces: "
            "shards/{00000..00127}.tar",
            options->data_split, others);
    else
        qsort(names, (size_t)count, sizeof *names, compare_texts);
    for (int64_t k = 0; k < count && st == ST_OK; k++)
        st = note_shard(set, names[k]);
done:
    for (int64_t k = 0; k < count; k++)
        free(names[k]);
    free(names);
    closedir(dir);
    return st;
}

status web_find_shards(webdataset *set, const conf *options)
{
    struct stat info;
    if (snprintf(set->root, sizeof set->root, "%s", options->data_path) >= (int)sizeof set->root)
        return FAIL_IN(ST_CONFIG, options->data_path, "data.path is too long");
    if (stat(set->root, &info) == 0 && S_ISDIR(info.st_mode))
        return shards_of_folder(set, options);
    char *brace = strchr(set->root, '{');
    if (brace)
        *brace = 0;
    char *slash = strrchr(set->root, '/');
    if (slash)
        *slash = 0;
    return braces_expand(options->data_path, add_shard, set);
}
