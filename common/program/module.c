/* SPDX-License-Identifier: Apache-2.0 */
/* module.c: see module.h. This is the program's side. */
#include "common/program/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/program/log.h"
#include "common/base/proc.h"

static status module_path(const char *file, char *out, size_t size)
{
    char self[PATH_MAX];
    TRY(proc_self_path(self, sizeof self));
    *strrchr(self, '/') = 0;
    if ((size_t)snprintf(out, size, "%s/../lib/tessera/%s", self, file) >= size)
        return FAIL(ST_OS, "the path of this program is too long");
    return ST_OK;
}

status module_find(const char *file, const char *what, const char *where_built, char *out,
                   size_t size)
{
    TRY(module_path(file, out, size));
    if (access(out, R_OK) != 0)
        return FAIL(ST_UNAVAILABLE, "there is no %s: %s does not exist (it is built %s)", what, out,
                    where_built);
    return ST_OK;
}

status module_open(const char *file, const char *symbol, const char *what, const char *where_built,
                   void **out_function)
{
    char path[PATH_MAX];
    TRY(module_find(file, what, where_built, path, sizeof path));
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return FAIL(ST_UNAVAILABLE, "the %s cannot be opened: %s", what, dlerror());
    *out_function = dlsym(handle, symbol);
    if (!*out_function)
        return FAIL(ST_UNAVAILABLE, "there is no %s in %s: it is a library of another build", what,
                    path);
    return ST_OK;
}

const module_host *module_program(void)
{
    static const module_host host = {status_fail,  status_context,   status_text,
                                     status_clear, status_exit_code, log_event};
    return &host;
}
