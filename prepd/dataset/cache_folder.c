/* cache_folder.c: tries the candidates of cache_folder.h in order,
 * makes the folder and checks it. */
#include "prepd/dataset/cache_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/program/log.h"

static bool usable_folder(const char *path, mode_t mode)
{
    if (mkdir(path, mode) != 0 && errno != EEXIST)
        return false;
    return access(path, W_OK | X_OK) == 0;
}

/* Makes a folder where any user could have made one of this name, such as in /tmp. It is refused
 * unless it is ours alone, because another user could have put a false index there. */
static status own_folder(const char *path)
{
    struct stat info;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return FAIL_IN(ST_CANT_CREATE, path,
                       "the folder for the index cannot be made: %s; set prepd.cache_dir",
                       strerror(errno));
    if (lstat(path, &info) != 0)
        return FAIL_IN(ST_CANT_CREATE, path,
                       "the folder for the index cannot be read: %s; set prepd.cache_dir",
                       strerror(errno));
    if (S_ISDIR(info.st_mode) && info.st_uid == geteuid() && !(info.st_mode & (S_IWGRP | S_IWOTH)))
        return ST_OK;
    return FAIL_IN(ST_CANT_CREATE, path,
                   "there is no folder for the index: this one %s, so another user may have made "
                   "it; remove it or set prepd.cache_dir",
                   S_ISLNK(info.st_mode)      ? "is a symbolic link"
                   : !S_ISDIR(info.st_mode)   ? "is not a folder"
                   : info.st_uid != geteuid() ? "belongs to another user"
                                              : "can be written by other users");
}

status cache_folder(const conf *options, char out[PATH_MAX])
{
    const char *home = getenv("HOME"), *xdg = getenv("XDG_CACHE_HOME"), *tmp = getenv("TMPDIR");
    char first[PATH_MAX] = "";
    if (options->prepd_cache_dir[0]) {
        snprintf(out, PATH_MAX, "%s", options->prepd_cache_dir);
        if (usable_folder(out, 0777))
            return ST_OK;
        return FAIL_IN(ST_CANT_CREATE, out,
                       "prepd.cache_dir cannot be written: %s; name a folder that can",
                       strerror(errno));
    }
    struct stat info;
    snprintf(out, PATH_MAX, "%s", options->data_path);
    char *brace =
        stat(out, &info) == 0
            ? NULL
            : strchr(out,
                     '{'); /* data.path is a pattern of tars: the folder is what stands before it */
    if (brace)
        *brace = 0;
    char *slash = strrchr(out, '/');
    if (slash && (brace || (stat(out, &info) == 0 && !S_ISDIR(info.st_mode))))
        *slash = 0;
    if (snprintf(first, sizeof(first), "%s/.tessera", out) < (int)sizeof(first) &&
        usable_folder(first, 0777)) {
        snprintf(out, PATH_MAX, "%s", first);
        return ST_OK;
    }
    if (xdg && xdg[0] == '/') {
        snprintf(out, PATH_MAX, "%s/tessera", xdg);
    } else if (home && home[0] == '/') {
        char cache[PATH_MAX];
        snprintf(cache, sizeof(cache), "%s/.cache", home);
        (void)usable_folder(cache, 0700);
        snprintf(out, PATH_MAX, "%s/.cache/tessera", home);
    } else {
        out[0] = 0;
    }
    if (!out[0] || !usable_folder(out, 0700)) {
        snprintf(out, PATH_MAX, "%s/tessera-%d", tmp && tmp[0] == '/' ? tmp : "/tmp",
                 (int)geteuid());
        TRY(own_folder(out));
    }
    log_info("the index is kept elsewhere, because %s cannot be written folder=%s", first, out);
    return ST_OK;
}
