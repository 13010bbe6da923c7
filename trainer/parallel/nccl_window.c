/* nccl_window.c: comm.h's windows over NCCL: memory of ncclMemAlloc, registered as a symmetric
 * window, whose addresses are those of the node's GPUs that reach each other by load and store. */
#include "trainer/parallel/nccl_window.h"

#include <stdlib.h>

#include "trainer/parallel/nccl_world.h"

#ifdef TESSERA_NCCL_WINDOWS

#include "trainer/parallel/nccl_lsa.h"

/* What is behind comm_window.handle. */
typedef struct held {
    void *memory;
    ncclWindow_t window;
} held;

/* Layouts of the device API hold within a minor version. */
static status check_version(void)
{
    enum { OF_PATCH = 100 };
    const int there = nccl()->version / OF_PATCH, built = nccl_lsa_version() / OF_PATCH;
    if (there != built)
        return FAIL(ST_UNAVAILABLE,
                    "NCCL's library is of version code %d and this program was built with %d",
                    nccl()->version, nccl_lsa_version());
    if (!nccl()->windows)
        return FAIL(ST_UNAVAILABLE, "NCCL's library has no windows");
    return ST_OK;
}

static status check_reach(const nccl_group *g)
{
    TRY(nccl_enter(g->world));
    const int reached = nccl_lsa_ranks(nccl()->TeamLsa, g->comm);
    TRY(nccl_leave(g, ncclSuccess, "ncclTeamLsa"));
    if (reached != g->size)
        return FAIL(ST_UNAVAILABLE,
                    "of the group's %d ranks %d reach each other by load and store, as NCCL finds",
                    g->size, reached);
    return ST_OK;
}

status nccl_window_new(const comm *c, stream *s, size_t bytes, comm_window *out)
{
    const nccl_group *g = c->handle;
    TRY(check_version());
    TRY(check_reach(g));
    held *h = calloc(1, sizeof *h);
    if (!h)
        return FAIL(ST_NO_MEMORY, "no memory for a window");
    out->handle = h;
    out->bytes = bytes;
    out->stop = nccl_world_stage(g->world)->stop;
    ncclResult_t result = nccl()->MemAlloc(&h->memory, bytes);
    if (result != ncclSuccess)
        return FAIL(ST_NO_MEMORY, "%s has no %zu bytes left for a window: ncclMemAlloc: %s",
                    s->dev->description, bytes, nccl()->GetErrorString(result));
    TRY(s->dev->v->zero(s, h->memory, bytes));
    return s->dev->v->wait(s);
}

static status read_addresses(const comm *c, stream *s, comm_window *w)
{
    const backend_vtable *v = s->dev->v;
    const size_t bytes = nccl_lsa_window_bytes();
    void *window = malloc(bytes), **list = calloc((size_t)c->size, sizeof *list);
    status st = window && list ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a window");
    if (st == ST_OK)
        st = v->to_host(s, window, ((held *)w->handle)->window, bytes);
    if (st == ST_OK)
        st = v->wait(s);
    for (int r = 0; r < c->size && st == ST_OK; r++)
        list[r] = nccl_lsa_address(window, r);
    if (st == ST_OK)
        st = v->alloc(s->dev, (size_t)c->size * sizeof *list, (void **)&w->base);
    if (st == ST_OK)
        st = v->to_device(s, w->base, list, (size_t)c->size * sizeof *list);
    if (st == ST_OK)
        st = v->wait(s);
    if (st == ST_OK)
        w->own = list[c->rank];
    free(window);
    free(list);
    return st;
}

status nccl_window_share(const comm *c, stream *s, comm_window *inout)
{
    nccl_group *g = c->handle;
    held *h = inout->handle;
    TRY(nccl_enter(g->world));
    TRY(nccl_leave(g,
                   nccl()->CommWindowRegister(g->comm, h->memory, inout->bytes, &h->window,
                                              NCCL_WIN_COLL_SYMMETRIC),
                   "ncclCommWindowRegister"));
    if (!h->window)
        return FAIL(ST_UNAVAILABLE,
                    "NCCL registers no symmetric window here (is NCCL_CUMEM_ENABLE 0?)");
    return read_addresses(c, s, inout);
}

void nccl_window_free(const comm *c, stream *s, comm_window *w)
{
    const nccl_group *g = c->handle;
    held *h = w->handle;
    if (!h)
        return;
    if (s->dev->v->wait(s) != ST_OK) /* the run's error has been told */
        status_clear();
    if (h->window && g->comm && nccl_enter(g->world) == ST_OK &&
        nccl_leave(g, nccl()->CommWindowDeregister(g->comm, h->window), "closing a window") !=
            ST_OK)
        status_clear();
    if (h->memory)
        nccl()->MemFree(h->memory);
    free(h);
}

#else

status nccl_window_new(const comm *c, stream *s, size_t bytes, comm_window *out)
{
    (void)c;
    (void)s;
    (void)bytes;
    (void)out;
    return FAIL(ST_UNAVAILABLE, "this program was built without nvcc or with an nccl.h older than "
                                "2.28, which has no device API");
}

status nccl_window_share(const comm *c, stream *s, comm_window *inout)
{
    (void)c;
    (void)s;
    (void)inout;
    return FAIL(ST_INTERNAL, "no window was made");
}

void nccl_window_free(const comm *c, stream *s, comm_window *w)
{
    (void)c;
    (void)s;
    (void)w;
}

#endif
