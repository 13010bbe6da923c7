/* SPDX-License-Identifier: Apache-2.0 */
/* host_memory.h: how much of the machine's memory this process may have. The kernel's figures are
 * those of the whole machine; a container or a batch system gives a process less by a cgroup. */
#ifndef TESSERA_TRAINER_DEVICE_HOST_MEMORY_H
#define TESSERA_TRAINER_DEVICE_HOST_MEMORY_H

#include <stddef.h>

#include "common/base/status.h"

typedef struct host_memory {
    size_t total;     /* bytes: the machine's, or the least limit of this process's cgroups */
    size_t available; /* bytes that this process could still take, without swapping */
    char machine[64]; /* differs between machines; "" if the kernel does not say */
    char group[512];  /* the folder of the cgroup that has that least limit; "": none has one */
} host_memory;

/* Reads MemTotal and MemAvailable, and the limits and usage of the memory cgroups of this process
 * (version 2 or 1) from its own up to the root. Page cache that a cgroup would give up counts as
 * available. root: "" or, for tests, a folder that stands in for "/". ST_OS if /proc/meminfo has
 * no such figures; a cgroup whose files cannot be read counts as one without a limit. */
WARN_UNUSED status host_memory_read(const char *root, host_memory *out);

#endif
