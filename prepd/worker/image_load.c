#include "prepd/worker/image_load.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proc.h"

static status module_path(char *out, size_t size)
{
    const char *given = getenv("TESSERA_IMAGE_MODULE");
    if (given && *given) {
        snprintf(out, size, "%s", given);
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
    if (snprintf(out, size, "%s/lib/libprepd_image.so", self) >= (int)size)
        return FAIL(ST_UNAVAILABLE, "path of the image module is too long: %s", self);
    return ST_OK;
}

status image_load(const char *program, const image_api **out)
{
    char path[PATH_MAX + 64];
    TRY(module_path(path, sizeof(path)));
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module)
        return FAIL(ST_UNAVAILABLE, "can not load the image module: %s", dlerror());
    const image_api *api = dlsym(module, IMAGE_API_SYMBOL);
    if (!api || api->version != IMAGE_API_VERSION) {
        dlclose(module);
        return FAIL(ST_UNAVAILABLE, "%s is no image module of this version (%d)", path,
                    IMAGE_API_VERSION);
    }
    TRY(api->init(program));
    *out = api;
    return ST_OK;
}
