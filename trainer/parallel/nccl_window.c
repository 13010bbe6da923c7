/* nccl_window.c: windows (comm.h) over NCCL. The memory comes from ncclMemAlloc and is registered
 * as a symmetric window; NCCL then maps the memory of all ranks that reach each other by load and
 * store (nccl_lsa.h), and their addresses go into a list that kernels read. */
#include "trainer/parallel/nccl_window.h"

#include <stdlib.h>

#include "trainer/parallel/nccl_world.h"

#ifdef TESSERA_NCCL_WINDOWS

#include "trainer/parallel/nccl_lsa.h"

/* What comm_window.handle points to. */
typedef struct held {
    void *memory;
    ncclWindow_t window;
} held;

/* The header's memory layouts hold for libraries of the same minor version. */
static status check_version(void)
{
    enum { OF_PATCH = 100 };
    const int there = nccl_api()->version / OF_PATCH, built = nccl_lsa_version() / OF_PATCH;
    if (there != built)
        return FAIL(ST_UNAVAILABLE,
                    "NCCL's library has version code %d, but this program was built with %d",
                    nccl_api()->version, nccl_lsa_version());
    if (!nccl_api()->windows)
        return FAIL(ST_UNAVAILABLE, "NCCL's library has no functions for windows");
    return ST_OK;
}

static status check_reach(const nccl_group *group)
{
    TRY(nccl_enter(group->world, "ncclTeamLsa"));
    const int reached = nccl_lsa_ranks(nccl_api()->TeamLsa, group->comm);
    TRY(nccl_leave(group, ncclSuccess));
    if (reached != group->size)
        return FAIL(ST_UNAVAILABLE,
                    "the group has %d ranks, but only %d of them reach each other's memory by load "
                    "and store, as NCCL reports",
                    group->size, reached);
    return ST_OK;
}

status nccl_window_reach(const comm *group)
{
    TRY(check_version());
    return check_reach(group->handle);
}

status nccl_window_new(const comm *group, stream *queue, size_t bytes, comm_window *out)
{
    const nccl_group *calls = group->handle;
    TRY(nccl_window_reach(group));
    held *memory = calloc(1, sizeof *memory);
    if (!memory)
        return FAIL(ST_NO_MEMORY, "no memory for a window");
    out->handle = memory;
    out->bytes = bytes;
    out->watch = nccl_world_stage(calls->world)->watch;
    ncclResult_t result = nccl_api()->MemAlloc(&memory->memory, bytes);
    if (result != ncclSuccess)
        return FAIL(ST_NO_MEMORY, "%s has no %zu bytes left for a window: ncclMemAlloc: %s",
                    queue->dev->description, bytes, nccl_api()->GetErrorString(result));
    TRY(queue->dev->backend->zero(queue, memory->memory, bytes));
    return queue->dev->backend->wait(queue);
}

static status read_addresses(const comm *group, stream *queue, comm_window *win)
{
    const backend_vtable *backend = queue->dev->backend;
    const size_t bytes = nccl_lsa_window_bytes();
    void *window = malloc(bytes), **list = calloc((size_t)group->size, sizeof *list);
    status st = window && list ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a window");
    if (st == ST_OK)
        st = backend->to_host(queue, window, ((held *)win->handle)->window, bytes);
    if (st == ST_OK)
        st = backend->wait(queue);
    for (int i = 0; i < group->size && st == ST_OK; i++)
        list[i] = nccl_lsa_address(window, i);
    if (st == ST_OK)
        st = backend->alloc(queue->dev, (size_t)group->size * sizeof *list, (void **)&win->base);
    if (st == ST_OK)
        st = backend->to_device(queue, win->base, list, (size_t)group->size * sizeof *list);
    if (st == ST_OK)
        st = backend->wait(queue);
    if (st == ST_OK)
        win->own = list[group->rank];
    free(window);
    free(list);
    return st;
}

status nccl_window_share(const comm *group, stream *queue, comm_window *inout)
{
    nccl_group *calls = group->handle;
    held *memory = inout->handle;
    TRY(nccl_enter(calls->world, "ncclCommWindowRegister"));
    TRY(nccl_leave(calls,
                   nccl_api()->CommWindowRegister(calls->comm, memory->memory, inout->bytes,
                                                  &memory->window, NCCL_WIN_COLL_SYMMETRIC)));
    if (!memory->window)
        return FAIL(ST_UNAVAILABLE,
                    "NCCL registers no symmetric window here (is NCCL_CUMEM_ENABLE set to 0?)");
    return read_addresses(group, queue, inout);
}

void nccl_window_free(const comm *group, stream *queue, comm_window *window)
{
    const nccl_group *calls = group->handle;
    held *memory = window->handle;
    if (!memory)
        return;
    if (queue->dev->backend->wait(queue) != ST_OK) /* the run has reported its error already */
        status_clear();
    if (memory->window && calls->comm && nccl_enter(calls->world, "closing a window") == ST_OK &&
        nccl_leave(calls, nccl_api()->CommWindowDeregister(calls->comm, memory->window)) != ST_OK)
        status_clear();
    if (memory->memory)
        nccl_api()->MemFree(memory->memory);
    free(memory);
}

#else

status nccl_window_reach(const comm *group)
{
    (void)group;
    return FAIL(ST_UNAVAILABLE, "this program was built without nvcc, or with an nccl.h older than "
                                "2.28, which has no device API");
}

status nccl_window_new(const comm *group, stream *queue, size_t bytes, comm_window *out)
{
    (void)queue;
    (void)bytes;
    (void)out;
    return nccl_window_reach(group);
}

status nccl_window_share(const comm *group, stream *queue, comm_window *inout)
{
    (void)group;
    (void)queue;
    (void)inout;
    return FAIL(ST_INTERNAL, "no window was made");
}

void nccl_window_free(const comm *group, stream *queue, comm_window *window)
{
    (void)group;
    (void)queue;
    (void)window;
}

#endif
