/* SPDX-License-Identifier: Apache-2.0 */
/* leftovers.c: what killed processes have left in shared memory. A name is unlinked when all ranks
 * have the memory, so one stays only if a process was killed before that. */
#include "tests/nccl/double/shim.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

enum { OLD_S = 3600 }; /* longer than ranks wait for each other */

/* The process that made the name, or 0 if it is not one of ours. */
static int maker_of(const char *name)
{
    static const char *const begin[] = {SHIM_COMM_NAME, SHIM_WINDOW_NAME};
    for (size_t i = 0; i < sizeof begin / sizeof *begin; i++) {
        const char *expected = begin[i] + 1; /* without its slash */
        if (strncmp(name, expected, strlen(expected)) == 0)
            return atoi(name + strlen(expected));
    }
    return 0;
}

/* An age is asked for too, since the process may be in another container, where it has another
 * number, if containers share the memory. */
static bool is_left(int folder, const char *name)
{
    const int maker = maker_of(name);
    struct stat about;
    return maker > 0 && kill(maker, 0) != 0 && errno == ESRCH &&
           fstatat(folder, name, &about, 0) == 0 && time(NULL) - about.st_mtime > OLD_S;
}

void shim_forget_dead(void)
{
    DIR *folder = opendir("/dev/shm");
    if (!folder)
        return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char name[sizeof entry->d_name + 1];
        snprintf(name, sizeof name, "/%s", entry->d_name);
        if (is_left(dirfd(folder), entry->d_name))
            shm_unlink(name);
    }
    closedir(folder);
}
