/* comm_window.c: opens and closes windows (comm.h) so that all ranks of a job have one or none
 * does. Each of the two steps of opening, making the memory and sharing its address, ends with all
 * ranks telling each other how they fared (agree.h). */
#include "trainer/parallel/agree.h"

#include <stdlib.h>
#include <string.h>

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

/* ST_UNAVAILABLE if this rank knows that its group can have no window. */
static status window_reach(const comm *group)
{
    if (group->size == 1)
        return ST_OK;
    if (!group->engine->window_reach)
        return FAIL(ST_UNAVAILABLE, "comm.engine %s has no windows", group->engine->name);
    return group->engine->window_reach(group);
}

status comm_window_reached(const comm *all, const comm *group, bool *out)
{
    const comm_at at = {"agree on windows", -1};
    unsigned char *said = calloc((size_t)all->size, 1);
    const status reach =
        said ? window_reach(group)
             : FAIL(ST_NO_MEMORY, "no memory for the answers of %d ranks", all->size);
    const unsigned char mine = reach == ST_OK;
    status st = comm_agree(all, at, reach == ST_UNAVAILABLE ? ST_OK : reach, 0);
    if (st == ST_OK) {
        status_clear();
        st = comm_host_all_gather(all, at, &mine, said, 1);
    }
    if (st == ST_OK)
        *out = memchr(said, 0, (size_t)all->size) == NULL;
    free(said);
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
