/* comm_window.c: opens and closes windows (comm.h) so that all ranks of a job have one or none
 * does. Each of the two steps of opening, making the memory and sharing its address, ends with all
 * ranks telling each other how they fared (agree.h). */
#include "trainer/parallel/agree.h"

/* A group of one rank: ordinary device memory and a list with its own address. */
static status own_new(stream *queue, size_t bytes, comm_window *out)
{
    const backend_vtable *backend = queue->dev->backend;
    TRY(backend->alloc(queue->dev, bytes, &out->own));
    TRY(backend->alloc(queue->dev, sizeof *out->base, (void **)&out->base));
    TRY(backend->to_device(queue, out->base, &out->own, sizeof out->own));
    return backend->wait(queue);
}

static status window_new(const comm *group, stream *queue, size_t bytes, comm_window *out)
{
    out->bytes = bytes;
    if (group->size == 1)
        return own_new(queue, bytes, out);
    if (!group->engine->window_new)
        return FAIL(ST_UNAVAILABLE, "comm.engine %s has no windows", group->engine->name);
    return group->engine->window_new(group, queue, bytes, out);
}

static status window_share(const comm *group, stream *queue, comm_window *inout)
{
    return group->size == 1 ? ST_OK : group->engine->window_share(group, queue, inout);
}

status comm_window_open(const comm *all, const comm *group, stream *queue, size_t bytes,
                        comm_window *out)
{
    *out = (comm_window){0};
    const comm_at at = {"agree on windows", -1};
    status st = comm_agree(all, at, window_new(group, queue, bytes, out), 0);
    if (st == ST_OK)
        st = comm_agree(all, at, window_share(group, queue, out), 0);
    if (st != ST_OK) {
        const status_note why = *status_last();
        comm_window_close(group, queue, out);
        status_set(&why);
    }
    return st;
}

void comm_window_close(const comm *group, stream *queue, comm_window *window)
{
    const backend_vtable *backend = queue->dev->backend;
    if (group->size > 1 && group->engine->window_free)
        group->engine->window_free(group, queue, window);
    else if (window->own)
        backend->release(queue->dev, window->own);
    if (window->base)
        backend->release(queue->dev, window->base);
    *window = (comm_window){0};
}
