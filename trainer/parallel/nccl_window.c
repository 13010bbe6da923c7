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

static status check_reach(const nccl_group *g)
{
    TRY(nccl_enter(g->world));
    const int reached = nccl_lsa_ranks(nccl_api()->TeamLsa, g->comm);
    TRY(nccl_leave(g, ncclSuccess, "ncclTeamLsa"));
    if (reached != g->size)
        return FAIL(ST_UNAVAILABLE,
                    "the group has %d ranks, but only %d of them reach each other's memory by load "
                    "and store, as NCCL reports",
                    g->size, reached);
    return ST_OK;
}

status nccl_window_new(const comm *group, stream *s, size_t bytes, comm_window *out)
{
    const nccl_group *g = group->handle;
    TRY(check_version());
    TRY(check_reach(g));
    held *memory = calloc(1, sizeof *memory);
    if (!memory)
        return FAIL(ST_NO_MEMORY, "no memory for a window");
    out->handle = memory;
    out->bytes = bytes;
    out->stop = nccl_world_stage(g->world)->stop;
    ncclResult_t result = nccl_api()->MemAlloc(&memory->memory, bytes);
    if (result != ncclSuccess)
        return FAIL(ST_NO_MEMORY, "%s has no %zu bytes left for a window: ncclMemAlloc: %s",
                    s->dev->description, bytes, nccl_api()->GetErrorString(result));
    TRY(s->dev->backend->zero(s, memory->memory, bytes));
    return s->dev->backend->wait(s);
}

static status read_addresses(const comm *group, stream *s, comm_window *w)
{
    const backend_vtable *v = s->dev->backend;
    const size_t bytes = nccl_lsa_window_bytes();
    void *window = malloc(bytes), **list = calloc((size_t)group->size, sizeof *list);
    status st = window && list ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a window");
    if (st == ST_OK)
        st = v->to_host(s, window, ((held *)w->handle)->window, bytes);
    if (st == ST_OK)
        st = v->wait(s);
    for (int r = 0; r < group->size && st == ST_OK; r++)
        list[r] = nccl_lsa_address(window, r);
    if (st == ST_OK)
        st = v->alloc(s->dev, (size_t)group->size * sizeof *list, (void **)&w->base);
    if (st == ST_OK)
        st = v->to_device(s, w->base, list, (size_t)group->size * sizeof *list);
    if (st == ST_OK)
        st = v->wait(s);
    if (st == ST_OK)
        w->own = list[group->rank];
    free(window);
    free(list);
    return st;
}

status nccl_window_share(const comm *group, stream *s, comm_window *inout)
{
    nccl_group *g = group->handle;
    held *memory = inout->handle;
    TRY(nccl_enter(g->world));
    TRY(nccl_leave(g,
                   nccl_api()->CommWindowRegister(g->comm, memory->memory, inout->bytes,
                                                  &memory->window, NCCL_WIN_COLL_SYMMETRIC),
                   "ncclCommWindowRegister"));
    if (!memory->window)
        return FAIL(ST_UNAVAILABLE,
                    "NCCL registers no symmetric window here (is NCCL_CUMEM_ENABLE set to 0?)");
    return read_addresses(group, s, inout);
}

void nccl_window_free(const comm *group, stream *s, comm_window *window)
{
    const nccl_group *g = group->handle;
    held *memory = window->handle;
    if (!memory)
        return;
    if (s->dev->backend->wait(s) != ST_OK) /* the run has reported its error already */
        status_clear();
    if (memory->window && g->comm && nccl_enter(g->world) == ST_OK &&
        nccl_leave(g, nccl_api()->CommWindowDeregister(g->comm, memory->window),
                   "closing a window") != ST_OK)
        status_clear();
    if (memory->memory)
        nccl_api()->MemFree(memory->memory);
    free(memory);
}

#else

status nccl_window_new(const comm *group, stream *s, size_t bytes, comm_window *out)
{
    (void)group;
    (void)s;
    (void)bytes;
    (void)out;
    return FAIL(ST_UNAVAILABLE, "this program was built without nvcc, or with an nccl.h older than "
                                "2.28, which has no device API");
}

status nccl_window_share(const comm *group, stream *s, comm_window *inout)
{
    (void)group;
    (void)s;
    (void)inout;
    return FAIL(ST_INTERNAL, "no window was made");
}

void nccl_window_free(const comm *group, stream *s, comm_window *window)
{
    (void)group;
    (void)s;
    (void)window;
}

#endif
