/* cpus.c: how many CPUs this process may use: the smaller of its affinity mask and the quotas of
 * its cgroups. sysconf and most libraries know only the affinity mask, and therefore start 64
 * threads in a container that is limited to two CPUs. */
#include "common/base/proc.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static int affinity_cpus(void)
{
    for (int n = 1024; n <= 1 << 20; n *= 4) { /* the kernel's mask can be wider than cpu_set_t */
        cpu_set_t *set = CPU_ALLOC(n);
        if (!set)
            break;
        size_t size = CPU_ALLOC_SIZE(n);
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

static bool read_line(const char *folder, const char *file, char *out, size_t size)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, file) >= sizeof path)
        return false;
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fgets(out, (int)size, f) != NULL;
    fclose(f);
    return ok;
}

/* The CPUs that one cgroup's quota grants, rounded up; INT_MAX if it has no quota. v2: the version
 * of the cgroup file system. */
static int folder_quota(const char *folder, bool v2)
{
    char text[128];
    long long quota = -1, period = 0;
    if (v2) {
        if (!read_line(folder, "cpu.max", text, sizeof text) ||
            sscanf(text, "%lld %lld", &quota, &period) != 2)
            return INT_MAX; /* "max 100000" means no quota */
    } else {
        if (!read_line(folder, "cpu.cfs_quota_us", text, sizeof text) ||
            sscanf(text, "%lld", &quota) != 1 ||
            !read_line(folder, "cpu.cfs_period_us", text, sizeof text) ||
            sscanf(text, "%lld", &period) != 1)
            return INT_MAX;
    }
    if (quota <= 0 || period <= 0 || quota / period >= INT_MAX)
        return INT_MAX;
    return (int)((quota + period - 1) / period);
}

/* The smallest quota from our cgroup up to the root, since a parent's quota limits its children. */
static int chain_quota(const char *mount, const char *path, bool v2)
{
    char folder[PATH_MAX];
    size_t root = strlen(mount);
    if ((size_t)snprintf(folder, sizeof folder, "%s%s", mount, path) >= sizeof folder)
        return INT_MAX;
    int least = INT_MAX;
    for (;;) {
        int q = folder_quota(folder, v2);
        if (q < least)
            least = q;
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < root)
            return least;
        *slash = 0;
    }
}

static bool lists_cpu(char *controllers)
{
    char *rest = NULL;
    for (char *c = strtok_r(controllers, ",", &rest); c; c = strtok_r(NULL, ",", &rest))
        if (strcmp(c, "cpu") == 0)
            return true;
    return false;
}

static int quota_cpus(void)
{
    int least = INT_MAX;
    char line[PATH_MAX + 256];
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return least;
    while (fgets(line, sizeof line, f)) { /* "4:cpu,cpuacct:/path" in v1, "0::/path" in v2 */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        controllers++;
        *path++ = 0;
        int q = INT_MAX;
        if (!*controllers)
            q = chain_quota("/sys/fs/cgroup", path, true);
        else if (lists_cpu(controllers))
            q = chain_quota("/sys/fs/cgroup/cpu", path, false);
        if (q < least)
            least = q;
    }
    fclose(f);
    return least;
}

int proc_cpus(void)
{
    int cpus = affinity_cpus(), quota = quota_cpus();
    return quota < cpus ? quota : cpus;
}
