/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.h: the control groups of this process, in which a container or a batch system limits what
 * it may use. Both versions of the cgroup file system are read; a machine may have both. */
#ifndef TESSERA_COMMON_BASE_CGROUP_H
#define TESSERA_COMMON_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>

/* Is given a folder with the files of one group. v2: the version of the cgroup file system. */
typedef void (*cgroup_visit)(void *user, const char *folder, bool v2);

/* Visits this process's group of the controller ("cpu", "memory") and then each group above it,
 * whose limits hold for it too. Folders may not exist: in a container the group's path can lie
 * outside of what is mounted there, and its files are then at the root of the mount, which is
 * visited last. root: "", or a folder that stands in for "/" in a test. */
void cgroup_walk(const char *root, const char *controller, cgroup_visit visit, void *user);

/* Reads the first line of a group's file into out, with its newline. False if there is none. */
bool cgroup_read_line(const char *folder, const char *file, char *out, size_t size);

#endif
