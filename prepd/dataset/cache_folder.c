#include "prepd/dataset/cache_folder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"

static bool usable_folder(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return false;
    return access(path, W_OK | X_OK) == 0;
}

status cache_folder(const conf *c, char out[PATH_MAX])
{
    const char *home = getenv("HOME"), *xdg = getenv("XDG_CACHE_HOME"), *tmp = getenv("TMPDIR");
    char first[PATH_MAX] = "";
    if (c->prepd_cache_dir[0]) {
        snprintf(out, PATH_MAX, "%s", c->prepd_cache_dir);
        if (usable_folder(out))
            return ST_OK;
        return FAIL_IN(ST_CANT_CREATE, out, "prepd.cache_dir can not be written: %s",
                       strerror(errno));
    }
    struct stat info;
    snprintf(out, PATH_MAX, "%s", c->data_path);
    char *slash = strrchr(out, '/');
    if (slash && stat(out, &info) == 0 && !S_ISDIR(info.st_mode))
        *slash = 0;
    if (snprintf(first, sizeof(first), "%s/.tessera", out) < (int)sizeof(first) &&
        usable_folder(first)) {
        snprintf(out, PATH_MAX, "%s", first);
        return ST_OK;
    }
    if (xdg && xdg[0] == '/') {
        snprintf(out, PATH_MAX, "%s/tessera", xdg);
    } else if (home && home[0] == '/') {
        char cache[PATH_MAX];
        snprintf(cache, sizeof(cache), "%s/.cache", home);
        (void)usable_folder(cache);
        snprintf(out, PATH_MAX, "%s/.cache/tessera", home);
    } else {
        out[0] = 0;
    }
    if (!out[0] || !usable_folder(out)) {
        snprintf(out, PATH_MAX, "%s/tessera-%d", tmp && tmp[0] == '/' ? tmp : "/tmp",
                 (int)getuid());
        if (!usable_folder(out))
            return FAIL_IN(ST_CANT_CREATE, out, "no folder for the index: set prepd.cache_dir");
    }
    log_info("index kept elsewhere: %s can not be written folder=%s", first, out);
    return ST_OK;
}
