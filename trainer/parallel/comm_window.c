/* comm_window.c: opens and closes windows (comm.h) so that all ranks of a job have one or none
 * does. Each of the two steps of opening, making the memory and sharing its address, ends with all
 * ranks telling each other how they fared (agree.h). */
#include "trainer/parallel/agree.h"

/* A group of one rank: ordinary device memory and a list with its own address. */
static status own_new(stream *s, size_t bytes, comm_window *out)
{
    const backend_vtable *v = s->dev->backend;
    TRY(v->alloc(s->dev, bytes, &out->own));
    TRY(v->alloc(s->dev, sizeof *out->base, (void **)&out->base));
    TRY(v->to_device(s, out->base, &out->own, sizeof out->own));
    return v->wait(s);
}

static status window_new(const comm *c, stream *s, size_t bytes, comm_window *out)
{
    out->bytes = bytes;
    if (c->size == 1)
        return own_new(s, bytes, out);
    if (!c->engine->window_new)
        return FAIL(ST_UNAVAILABLE, "comm.engine %s has no windows", c->engine->name);
    return c->engine->window_new(c, s, bytes, out);
}

static status window_share(const comm *c, stream *s, comm_window *inout)
{
    return c->size == 1 ? ST_OK : c->engine->window_share(c, s, inout);
}

status comm_window_open(const comm *all, const comm *group, stream *s, size_t bytes,
                        comm_window *out)
{
    *out = (comm_window){0};
    const comm_at at = {"agree on windows", -1};
    status st = comm_agree(all, at, window_new(group, s, bytes, out), 0);
    if (st == ST_OK)
        st = comm_agree(all, at, window_share(group, s, out), 0);
    if (st != ST_OK) {
        const status_note why = *status_last();
        comm_window_close(group, s, out);
        status_set(&why);
    }
    return st;
}

void comm_window_close(const comm *group, stream *s, comm_window *window)
{
    const backend_vtable *v = s->dev->backend;
    if (group->size > 1 && group->engine->window_free)
        group->engine->window_free(group, s, window);
    else if (window->own)
        v->release(s->dev, window->own);
    if (window->base)
        v->release(s->dev, window->base);
    *window = (comm_window){0};
}
