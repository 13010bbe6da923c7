#include "trainer/checkpoint/together.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "trainer/checkpoint/hf_write.h"

enum { POLL_NS = 50000000 };
static const int64_t MOST_NS = 3600 * (int64_t)1000000000;  /* slower disks are no disks */
static const int64_t LEAVING_NS = 30 * (int64_t)1000000000; /* the others write at the same time */

together together_of(const params *p)
{
    const mesh *m = p->mesh;
    if (!m || m->layout.world == 1)
        return (together){.writer = {0, 1}, .writes = true, .first = true};
    const comm *whole = mesh_comm(m, MESH_WHOLE);
    return (together){.mesh = m,
                      .writer = {m->place.pipeline * whole->size + whole->rank,
                                 (int)m->layout.pipeline * whole->size},
                      .writes = m->place.replicate == 0,
                      .first = m->rank == 0};
}

status together_agree(const together *t, int32_t *inout)
{
    if (!t->mesh)
        return ST_OK;
    return comm_host_broadcast(mesh_comm(t->mesh, MESH_WORLD), (comm_at){"begin checkpoint", -1},
                               inout, sizeof *inout, 0);
}

static status mark_path(char out[STATUS_PATH_MAX], const char *training, int rank, const char *kind)
{
    char name[64];
    snprintf(name, sizeof name, ".rank-%d.%s", rank, kind);
    return hf_path(out, training, name);
}

status together_mark(const together *t, const char *training, status outcome)
{
    char name[64];
    status_note why = *status_last();
    const char *text = outcome == ST_OK ? "" : status_text();
    snprintf(name, sizeof name, ".rank-%d.%s", t->writer.rank,
             outcome == ST_OK ? "done" : "failed");
    status st = hf_write_text(training, name, text, strlen(text));
    if (outcome == ST_OK)
        return st;
    status_set(&why);
    return outcome;
}

/* What a rank that failed said. */
static status failed_mark(const char *training, int rank)
{
    char path[STATUS_PATH_MAX], text[512] = "";
    TRY(mark_path(path, training, rank, "failed"));
    FILE *f = fopen(path, "re");
    if (!f)
        return ST_OK;
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    return FAIL(ST_IO, "writer %d: %s", rank, n ? text : "failed");
}

static status wait_one(const char *training, int rank, const atomic_bool *leaving)
{
    char path[STATUS_PATH_MAX];
    TRY(mark_path(path, training, rank, "done"));
    for (int64_t begin = clock_ns(), left = 0; access(path, F_OK) != 0;) {
        int64_t now = clock_ns();
        TRY(failed_mark(training, rank));
        if (atomic_load(leaving) && !left)
            left = now;
        if (now - begin > MOST_NS || (left && now - left > LEAVING_NS))
            return FAIL_IN(ST_TIMEOUT, path, "rank %d has not written its part after %.0f s", rank,
                           (double)(now - begin) * 1e-9);
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    if (unlink(path) != 0)
        return FAIL_IN(ST_IO, path, "%s", strerror(errno));
    return ST_OK;
}

status together_wait(const together *t, const char *training, const atomic_bool *leaving)
{
    for (int rank = 1; rank < t->writer.ranks; rank++)
        TRY(wait_one(training, rank, leaving));
    return ST_OK;
}
