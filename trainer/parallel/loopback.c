/* SPDX-License-Identifier: Apache-2.0 */
/* loopback.c: a library that the launcher preloads into mpirun, so that a socket that would listen
 * on all interfaces listens on loopback. All ranks of --nproc are on this machine, but Open MPI
 * binds mpirun's own port (oob/tcp, for daemons on other machines) to every address, whatever its
 * settings say.
 *
 * It is for mpirun alone: at its start it takes its own name, the first in LD_PRELOAD, out of that
 * variable, so that the ranks and whatever else mpirun starts run without it. Only the program that
 * mpirun of Open MPI 5 becomes, prterun, gets it back. It is built without sanitizers, as mpirun
 * is. */
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef int (*bind_function)(int, const struct sockaddr *, socklen_t);

typedef int (*execv_function)(const char *, char *const *);

int bind(int fd, const struct sockaddr *address, socklen_t size);

static char *with_this; /* LD_PRELOAD as it was; NULL: no memory */

__attribute__((constructor)) static void leave_children_alone(void)
{
    const char *all = getenv("LD_PRELOAD"), *others = all ? strchr(all, ':') : NULL;
    with_this = all ? strdup(all) : NULL;
    if (others)
        setenv("LD_PRELOAD", others + 1, 1);
    else
        unsetenv("LD_PRELOAD");
}

__attribute__((visibility("default"))) int execv(const char *path, char *const *args)
{
    const char *slash = strrchr(path, '/');
    if (with_this && strcmp(slash ? slash + 1 : path, "prterun") == 0)
        setenv("LD_PRELOAD", with_this, 1);
    return ((execv_function)dlsym(RTLD_NEXT, "execv"))(path, args);
}

/* Replaces the address "any" by loopback. */
static void narrow_address(struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address, sizeof in);
        if (in.sin_addr.s_addr == htonl(INADDR_ANY))
            in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        memcpy(address, &in, sizeof in);
    } else if (address->ss_family == AF_INET6) {
        struct sockaddr_in6 in;
        memcpy(&in, address, sizeof in);
        if (memcmp(&in.sin6_addr, &in6addr_any, sizeof in6addr_any) == 0)
            in.sin6_addr = in6addr_loopback;
        memcpy(address, &in, sizeof in);
    }
}

__attribute__((visibility("default"))) int bind(int fd, const struct sockaddr *address,
                                                socklen_t size)
{
    static bind_function real;
    struct sockaddr_storage own = {0};
    if (!real)
        real = (bind_function)dlsym(RTLD_NEXT, "bind");
    if (size > sizeof own)
        return real(fd, address, size);
    memcpy(&own, address, size);
    narrow_address(&own);
    return real(fd, (const struct sockaddr *)&own, size);
}
