/* SPDX-License-Identifier: Apache-2.0 */
/* cpus.c: how many CPUs this process may use: the smaller of its affinity mask and the quotas of
 * its cgroups. sysconf and most libraries know only the affinity mask, and therefore start 64
 * threads in a container that is limited to two CPUs. */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/base/cgroup.h"
#include "common/base/proc.h"

static int affinity_cpus(void)
{
    for (int i = 1024; i <= 1 << 20; i *= 4) { /* the kernel's mask can be wider than cpu_set_t */
        cpu_set_t *set = CPU_ALLOC(i);
        if (!set)
            break;
        size_t size = CPU_ALLOC_SIZE(i);
        int err = sched_getaffinity(0, size, set) == 0 ? 0 : errno;
        int found = err ? 0 : CPU_COUNT_S(size, set);
        CPU_FREE(set);
        if (!err)
            return found > 0 ? found : 1;
        if (err != EINVAL)
            break;
    }
    return 1;
}

/* The CPUs that one cgroup's quota grants, rounded up; INT_MAX if it has no quota. */
static int folder_quota(const char *folder, bool v2)
{
    char text[128];
    long long quota = -1, period = 0;
    if (v2) {
        if (!cgroup_read_line(folder, "cpu.max", text, sizeof text) ||
            sscanf(text, "%lld %lld", &quota, &period) != 2)
            return INT_MAX; /* "max 100000" means no quota */
    } else {
        if (!cgroup_read_line(folder, "cpu.cfs_quota_us", text, sizeof text) ||
            sscanf(text, "%lld", &quota) != 1 ||
            !cgroup_read_line(folder, "cpu.cfs_period_us", text, sizeof text) ||
            sscanf(text, "%lld", &period) != 1)
            return INT_MAX;
    }
    if (quota <= 0 || period <= 0 || quota / period >= INT_MAX)
        return INT_MAX;
    return (int)((quota + period - 1) / period);
}

static void narrow_quota(void *least, const char *folder, bool v2)
{
    const int quota = folder_quota(folder, v2);
    if (quota < *(int *)least)
        *(int *)least = quota;
}

int proc_cpus(void)
{
    int cpus = affinity_cpus(), quota = INT_MAX;
    cgroup_walk("", "cpu", narrow_quota, &quota);
    return quota < cpus ? quota : cpus;
}

int proc_cpus_each(int processes)
{
    const int share = proc_cpus() / (processes > 0 ? processes : 1);
    return share > 1 ? share : 1;
}

/* Finds the groups in /proc/self/cgroup and goes through their folders. */

bool cgroup_read_line(const char *folder, const char *file, char *out, size_t size)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, file) >= sizeof path)
        return false;
    FILE *out_file = fopen(path, "re");
    if (!out_file)
        return false;
    bool ok = fgets(out, (int)size, out_file) != NULL;
    fclose(out_file);
    return ok;
}

/* What a walk goes through. */
typedef struct walk {
    const char *root, *controller;
    cgroup_visit visit;
    void *user;
} walk;

/* Visits the group's folder and those above it, up to the mount point. */
static void climb_folders(const walk *way, const char *group, bool v2)
{
    char folder[PATH_MAX];
    const int mount = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s%s", way->root,
                               v2 ? "" : "/", v2 ? "" : way->controller);
    const size_t left = sizeof folder - (size_t)mount;
    if ((size_t)snprintf(folder + mount, left, "%s", group) >= left)
        return;
    for (;;) {
        way->visit(way->user, folder, v2);
        char *slash = strrchr(folder, '/');
        if (!slash || slash - folder < mount)
            return;
        *slash = 0;
    }
}

static bool lists_controller(char *controllers, const char *wanted)
{
    char *rest = NULL;
    for (char *name = strtok_r(controllers, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
        if (strcmp(name, wanted) == 0)
            return true;
    return false;
}

void cgroup_walk(const char *root, const char *controller, cgroup_visit visit, void *user)
{
    const walk way = {root, controller, visit, user};
    char line[PATH_MAX + 256], path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= sizeof path)
        return;
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) { /* "4:cpu,cpuacct:/path" in v1, "0::/path" in v2 */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        controllers++;
        *group++ = 0;
        if (!*controllers)
            climb_folders(&way, group, true);
        else if (lists_controller(controllers, controller))
            climb_folders(&way, group, false);
    }
    fclose(file);
}
