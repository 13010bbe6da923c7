/* SPDX-License-Identifier: Apache-2.0 */
/* image_load.c: finds and loads the modules of pictures and videos. */
#include "prepd/worker/media/image_load.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/program/module.h"

/* Loads a module and finds its table, which begins with its version. The environment variable may
 * name another file. */
static status load_module(const char *variable, const char *file, const char *symbol, int version,
                          const char *what, const void **out)
{
    char found[PATH_MAX], module_name[32];
    const char *path = getenv(variable);
    if (!path || !*path) {
        snprintf(module_name, sizeof module_name, "%s module", what);
        TRY(module_find(file, module_name, "with prepd", found, sizeof found));
        path = found;
    }
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
    const void *table;
    TRY(load_module("TESSERA_IMAGE_MODULE", "libprepd_image.so", IMAGE_API_SYMBOL,
                    IMAGE_API_VERSION, "image", &table));
    const image_api *api = table;
    TRY(api->init(program));
    *out = api;
    return ST_OK;
}

status video_load(const video_api **out)
{
    const void *table;
    TRY(load_module("TESSERA_VIDEO_MODULE", "libprepd_video.so", VIDEO_API_SYMBOL,
                    VIDEO_API_VERSION, "video", &table));
    *out = table;
    (*out)->init();
    return ST_OK;
}
