/* image_load.c: finds and loads the modules of pictures and videos. */
#include "prepd/worker/image_load.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/proc.h"

enum { PATH_BYTES = PATH_MAX + 64 };

/* The path of a module: the value of the environment variable if it is set, otherwise ../lib/NAME
 * from the folder of this program. */
static status module_path(const char *variable, const char *name, char *out)
{
    const char *given = getenv(variable);
    if (given && *given) {
        snprintf(out, PATH_BYTES, "%s", given);
        return ST_OK;
    }
    char self[PATH_MAX];
    TRY(proc_self_path(self, sizeof(self)));
    char *bin = strrchr(self, '/'); /* .../bin/prepd */
    if (bin)
        *bin = 0;
    char *top = strrchr(self, '/');
    if (top)
        *top = 0;
    if (snprintf(out, PATH_BYTES, "%s/lib/%s", self, name) >= PATH_BYTES)
        return FAIL(ST_UNAVAILABLE, "the path of the module %s is too long: %s", name, self);
    return ST_OK;
}

/* Loads a module and finds its table, which begins with its version. */
static status load_module(const char *path, const char *symbol, int version, const char *what,
                          const void **out)
{
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module)
        return FAIL(ST_UNAVAILABLE, "cannot load the %s module: %s", what, dlerror());
    const int *api = dlsym(module, symbol);
    if (!api || *api != version) {
        dlclose(module);
        return FAIL(
            ST_UNAVAILABLE,
            "%s is not the %s module of this version (%d); build and install all of prepd together",
            path, what, version);
    }
    *out = api;
    return ST_OK;
}

status image_load(const char *program, const image_api **out)
{
    char path[PATH_BYTES];
    const void *table;
    TRY(module_path("TESSERA_IMAGE_MODULE", "libprepd_image.so", path));
    TRY(load_module(path, IMAGE_API_SYMBOL, IMAGE_API_VERSION, "image", &table));
    const image_api *api = table;
    TRY(api->init(program));
    *out = api;
    return ST_OK;
}

status video_load(const video_api **out)
{
    char path[PATH_BYTES];
    const void *table;
    TRY(module_path("TESSERA_VIDEO_MODULE", "libprepd_video.so", path));
    TRY(load_module(path, VIDEO_API_SYMBOL, VIDEO_API_VERSION, "video", &table));
    *out = table;
    (*out)->init();
    return ST_OK;
}
