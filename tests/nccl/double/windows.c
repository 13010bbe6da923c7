/* SPDX-License-Identifier: Apache-2.0 */
/* windows.c: windows of the shim: the shared memory of all ranks of a communicator, mapped side by
 * side as in NCCL. It is as strict: registering ends when all ranks have come with the same size,
 * and a window has its own address, other than that of the memory it was made of. */
#include "tests/nccl/double/shim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEMORIES_MAX = 16 };
static const uint64_t STRIDE = UINT64_C(1) << 32; /* bytes between the parts of two ranks */

/* What ncclMemAlloc has allocated. */
static struct {
    void *at;
    size_t bytes;
    char name[SHIM_NAME_MAX];
} memory[MEMORIES_MAX];

static int find_memory(const void *at)
{
    int i = 0;
    while (i < MEMORIES_MAX && memory[i].at != at)
        i++;
    return i;
}

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    static int made;
    const int i = find_memory(NULL);
    if (i == MEMORIES_MAX)
        return ncclSystemError;
    snprintf(memory[i].name, sizeof memory[i].name, SHIM_WINDOW_NAME "%d-%d", (int)getpid(),
             made++);
    int fd = shm_open(memory[i].name, O_CREAT | O_EXCL | O_RDWR, 0600);
    void *at = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)size) == 0)
        at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (at == MAP_FAILED)
        return ncclSystemError;
    memset(at, 0x5a, size); /* not zeros: a caller that wants zeros has to write them */
    memory[i].at = at;
    memory[i].bytes = size;
    *ptr = at;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *ptr)
{
    const int i = find_memory(ptr);
    if (!ptr || i == MEMORIES_MAX)
        return ncclInvalidArgument;
    munmap(memory[i].at, memory[i].bytes);
    shm_unlink(memory[i].name); /* its name is still there if no rank registered it */
    memory[i].at = NULL;
    return ncclSuccess;
}

/* The team has as many ranks as TESSERA_NCCL_LSA says, or all if it is not set. */
typedef struct shim_team {
    int ranks, rank, stride;
} shim_team;
shim_team ncclTeamLsa(ncclComm_t comm);

shim_team ncclTeamLsa(ncclComm_t comm)
{
    const char *some = getenv("TESSERA_NCCL_LSA");
    const int count = some ? atoi(some) : comm->size;
    return (shim_team){count, comm->rank % count, 1};
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                    int winFlags)
{
    shim_member *me = shim_member_of(comm, comm->rank);
    const int i = find_memory(buff);
    if (!comm->joined || comm->window_out || i == MEMORIES_MAX || size > memory[i].bytes ||
        winFlags != NCCL_WIN_COLL_SYMMETRIC)
        return ncclInvalidUsage;
    *win = NULL;
    comm->window_out = win;
    comm->windows++;
    memcpy(me->window_name[comm->windows % 2], memory[i].name, SHIM_NAME_MAX);
    me->window_bytes[comm->windows % 2] = (int64_t)memory[i].bytes;
    atomic_store(&me->windows, comm->windows);
    shim_go_in(comm);
    ncclResult_t result = shim_finish(comm, ncclInProgress);
    shim_go_out(comm);
    return result;
}

static bool all_have(const struct ncclComm *comm, size_t field)
{
    for (int i = 0; i < comm->size; i++) {
        const char *theirs = (const char *)shim_member_of(comm, i);
        if (atomic_load((const atomic_llong *)(const void *)(theirs + field)) < comm->windows)
            return false;
    }
    return true;
}

static bool map_rank(char *base, const struct ncclComm *comm, int rank)
{
    const shim_member *me = shim_member_of(comm, rank);
    const int turn = comm->windows % 2;
    int fd = shm_open(me->window_name[turn], O_RDWR, 0600);
    void *at = fd < 0 ? MAP_FAILED
                      : mmap(base + (uint64_t)rank * STRIDE, (size_t)me->window_bytes[turn],
                             PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (fd >= 0)
        close(fd);
    return at != MAP_FAILED &&
           me->window_bytes[turn] == shim_member_of(comm, 0)->window_bytes[turn];
}

ncclResult_t shim_register(struct ncclComm *comm)
{
    shim_member *me = shim_member_of(comm, comm->rank);
    if (!all_have(comm, offsetof(shim_member, windows)))
        return ncclInProgress;
    if (atomic_load(&me->mapped) < comm->windows) {
        char *base = mmap(NULL, (size_t)comm->size * STRIDE, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        bool all = base != MAP_FAILED;
        for (int i = 0; i < comm->size && all; i++)
            all = map_rank(base, comm, i);
        ncclWindow_t window = all ? calloc(1, shim_window_bytes()) : NULL;
        if (!window)
            return ncclSystemError;
        shim_window_fill(window, base, (uint32_t)(STRIDE >> 32), comm->rank);
        *comm->window_out = window;
        atomic_store(&me->mapped, comm->windows);
    }
    if (!all_have(comm, offsetof(shim_member, mapped)))
        return ncclInProgress;
    shm_unlink(me->window_name[comm->windows % 2]); /* the memory stays while it is mapped */
    comm->window_out = NULL;
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
    if (!win)
        return ncclInvalidArgument;
    munmap(shim_window_base(win), (size_t)comm->size * STRIDE);
    free(win);
    return ncclSuccess;
}
