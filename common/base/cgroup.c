/* cgroup.c: finds the groups in /proc/self/cgroup and goes through their folders. */
#include "common/base/cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

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
