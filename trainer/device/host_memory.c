/* SPDX-License-Identifier: Apache-2.0 */
/* host_memory.c: reads /proc/meminfo, then narrows its figures by each cgroup that has a limit. */
#include "trainer/device/host_memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cgroup.h"

/* How the two versions of cgroups name what is read here. */
typedef struct cgroup_files {
    const char *limit, *usage, *reclaimable;
} cgroup_files;

static const cgroup_files version_2 = {"memory.max", "memory.current", "inactive_file"};
static const cgroup_files version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                       "total_inactive_file"};

enum { PATH_BYTES = 4096 };

/* Reads the number after `key`, which begins a line of the file. */
static bool read_number(const char *path, const char *key, uint64_t *out)
{
    char line[256];
    bool found = false;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file))
        found = strncmp(line, key, strlen(key)) == 0 &&
                sscanf(line + strlen(key), " %" SCNu64, out) == 1;
    fclose(file);
    return found;
}

/* Narrows the figures by the limit of one cgroup. */
static void narrow_memory(void *user, const char *folder, bool v2)
{
    host_memory *inout = user;
    const cgroup_files *names = v2 ? &version_2 : &version_1;
    char text[64], path[PATH_BYTES];
    uint64_t limit, used = 0, cache = 0;
    /* Without a limit there is "max" in version 2 and a huge number in version 1. */
    if (!cgroup_read_line(folder, names->limit, text, sizeof text) ||
        sscanf(text, "%" SCNu64, &limit) != 1)
        return;
    if (cgroup_read_line(folder, names->usage, text, sizeof text))
        sscanf(text, "%" SCNu64, &used);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (read_number(path, names->reclaimable, &cache))
        used -= cache < used ? cache : used;
    const uint64_t room = used < limit ? limit - used : 0;
    if (room < inout->available)
        inout->available = (size_t)room;
    if (limit >= inout->total)
        return;
    inout->total = (size_t)limit;
    snprintf(inout->group, sizeof inout->group, "%.500s", folder);
}

status host_memory_read(const char *root, host_memory *out)
{
    char path[PATH_BYTES];
    uint64_t total, available;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (!read_number(path, "MemTotal:", &total) || !read_number(path, "MemAvailable:", &available))
        return FAIL(ST_OS, "%s does not give MemTotal and MemAvailable (is /proc mounted?)", path);
    *out = (host_memory){.total = (size_t)total * 1024, .available = (size_t)available * 1024};
    snprintf(path, sizeof path, "%s/proc/sys/kernel/random/boot_id", root);
    FILE *file = fopen(path, "re");
    if (file && fgets(out->machine, sizeof out->machine, file))
        out->machine[strcspn(out->machine, "\n")] = 0;
    if (file)
        fclose(file);
    cgroup_walk(root, "memory", narrow_memory, out);
    if (out->available > out->total)
        out->available = out->total;
    return ST_OK;
}
