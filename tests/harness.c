/* SPDX-License-Identifier: Apache-2.0 */
/* harness.c: see harness.h. */
#include "tests/harness.h"

#include <ftw.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

char *harness_shared(const char *relative)
{
    char path[4096];
    const char *shared = getenv("TESSERA_SHARED");
    const char *source = getenv("TESSERA_SOURCE");
    if (shared)
        snprintf(path, sizeof path, "%s/%s", shared, relative);
    else
        snprintf(path, sizeof path, "%s/../shared/%s", source ? source : ".", relative);
    return access(path, R_OK) == 0 ? strdup(path) : NULL;
}

char *harness_temp(void)
{
    const char *tmp = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/tessera-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(path))
        fail_msg("mkdtemp(%s) failed", path);
    return strdup(path);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

void harness_remove(char **folder)
{
    if (!folder || !*folder)
        return;
    nftw(*folder, remove_entry, 32, FTW_DEPTH | FTW_PHYS);
    free(*folder);
    *folder = NULL;
}

int harness_port(int *out_fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    if (out_fd)
        *out_fd = fd;
    else
        close(fd);
    return ntohs(address.sin_port);
}

uint64_t harness_seed(void)
{
    static uint64_t seed;
    static int known;
    if (!known) {
        const char *text = getenv("TESSERA_SEED");
        seed = text ? strtoull(text, NULL, 10) : 1;
        known = 1;
        print_message("seed %llu (set TESSERA_SEED to repeat)\n", (unsigned long long)seed);
    }
    return seed;
}
