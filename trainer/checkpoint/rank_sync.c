/* rank_sync.c: see rank_sync.h. Marks are small files that appear by a rename, so one that is seen
 * is whole. */
#include "trainer/checkpoint/rank_sync.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "trainer/checkpoint/hf_write.h"
#include "trainer/checkpoint/prune.h"
#include "trainer/parallel/agree.h"

enum { POLL_NS = 50000000 };
/* MOST_NS: the longest that a rank may take to write its part. SEE_NS: how long the caches of a
 * network file system may hide a new file. LEAVING_NS: how long the first rank still waits when the
 * run ends; the others write at the same time, so they are about done. */
static const int64_t MOST_NS = 3600 * (int64_t)1000000000;
static const int64_t SEE_NS = 15 * (int64_t)1000000000;
static const int64_t LEAVING_NS = 30 * (int64_t)1000000000;

together together_of(const params *registry)
{
    const mesh *ranks = registry->mesh;
    if (!ranks || ranks->layout.world == 1)
        return (together){.writer = {0, 1}, .writes = true, .first = true};
    const comm *whole = mesh_comm(ranks, MESH_WHOLE);
    return (together){.mesh = ranks,
                      .writer = {ranks->place.pipeline * whole->size + whole->rank,
                                 (int)ranks->layout.pipeline * whole->size},
                      .writes = ranks->place.replicate == 0,
                      .first = ranks->rank == 0};
}

status together_settled(const together *ranks, status mine, int64_t step)
{
    if (!ranks->mesh)
        return mine;
    return comm_agree(mesh_comm(ranks->mesh, MESH_WORLD), (comm_at){"settle checkpoint", -1}, mine,
                      step);
}

/* Looks for a file for a while, since a network file system may show a new one late. */
static status see_file(const char *path, const char *folder)
{
    for (int64_t begin = clock_ns(); access(path, F_OK) != 0;) {
        if (clock_ns() - begin > SEE_NS)
            return FAIL_IN(ST_CONFIG, folder,
                           "this rank does not see a file that rank 0 has just written there: all "
                           "ranks write their checkpoints into one folder, so job.dump_folder (and "
                           "checkpoint.folder) must be on a file system that all machines share");
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return ST_OK;
}

status together_see(const together *ranks, const char *folder, status mine)
{
    if (!ranks->mesh)
        return mine;
    const comm *all = mesh_comm(ranks->mesh, MESH_WORLD);
    char name[64], path[STATUS_PATH_MAX] = "";
    int64_t token = clock_ns() ^ getpid(); /* a name that no cache has seen */
    TRY(comm_host_broadcast(all, (comm_at){"try the folder of checkpoints", -1}, &token,
                            sizeof token, 0));
    snprintf(name, sizeof name, ".seen-by-all-%" PRIx64, (uint64_t)token);
    if (mine == ST_OK)
        mine = hf_path(path, folder, name);
    if (mine == ST_OK && ranks->first)
        mine = hf_write_text(folder, name, "", 0);
    TRY(together_settled(ranks, mine, 0)); /* the file has been written */
    status st = together_settled(ranks, see_file(path, folder), 0);
    if (ranks->first)
        unlink(path);
    return st;
}

status together_agree(const together *ranks, int32_t *inout)
{
    if (!ranks->mesh)
        return ST_OK;
    return comm_host_broadcast(mesh_comm(ranks->mesh, MESH_WORLD),
                               (comm_at){"begin checkpoint", -1}, inout, sizeof *inout, 0);
}

static status mark_path(char out[STATUS_PATH_MAX], const char *training, int rank, const char *kind)
{
    char name[64];
    snprintf(name, sizeof name, ".rank-%d.%s", rank, kind);
    return hf_path(out, training, name);
}

static status own_path(const together *ranks, const char *training, char out[STATUS_PATH_MAX])
{
    char name[64];
    train_state_name(ranks->writer, name);
    return hf_path(out, training, name);
}

/* The digest of this rank's own training file, as text. */
static status own_digest(const together *ranks, const char *training, char out[HASH_TEXT])
{
    char path[STATUS_PATH_MAX];
    hash128 digest;
    TRY(own_path(ranks, training, path));
    TRY(hash_file(path, &digest));
    hash_print(digest, out);
    return ST_OK;
}

static void remove_own(const together *ranks, const char *training)
{
    char path[STATUS_PATH_MAX];
    if (own_path(ranks, training, path) == ST_OK)
        unlink(path);
}

status together_mark(const together *ranks, const char *training, status outcome)
{
    char name[64], digest[HASH_TEXT];
    if (outcome == ST_OK)
        outcome = own_digest(ranks, training, digest);
    const bool full = outcome != ST_OK && prune_was_full();
    status_note why = *status_last();
    const char *text = outcome == ST_OK ? digest : status_text();
    if (outcome != ST_OK) /* makes room for the mark if the disk is full */
        remove_own(ranks, training);
    snprintf(name, sizeof name, ".rank-%d.%s", ranks->writer.rank,
             outcome == ST_OK ? "done"
             : full           ? "full"
                              : "failed");
    status st = hf_write_text(training, name, text, strlen(text));
    if (outcome == ST_OK)
        return st;
    status_set(&why);
    return outcome;
}

/* Reads a mark. False: it is not there. */
static bool read_mark(const char *path, char *out, size_t room)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t got = fread(out, 1, room - 1, file);
    out[got] = 0;
    fclose(file);
    return true;
}

/* Fails with the reason of a rank that has failed; ST_OK if it has not. */
static status failed_mark(const char *training, int rank)
{
    char path[STATUS_PATH_MAX], full_path[STATUS_PATH_MAX], text[512] = "";
    TRY(mark_path(path, training, rank, "failed"));
    TRY(mark_path(full_path, training, rank, "full"));
    const bool full = read_mark(full_path, text, sizeof text);
    if (!full && !read_mark(path, text, sizeof text))
        return ST_OK;
    errno =
        full ? ENOSPC : 0; /* the note then carries the other rank's error, for prune_was_full */
    return FAIL(ST_IO, "writer %d: %s", rank, *text ? text : "it failed without saying why");
}

static status wait_one(const together *ranks, const char *training, int rank,
                       const atomic_bool *leaving, folder_known *out)
{
    char path[STATUS_PATH_MAX], digest[HASH_TEXT] = "", name[64];
    TRY(mark_path(path, training, rank, "done"));
    for (int64_t begin = clock_ns(), left = 0; access(path, F_OK) != 0;) {
        int64_t now = clock_ns();
        TRY(failed_mark(training, rank));
        if (atomic_load(leaving) && !left)
            left = now;
        if (now - begin > MOST_NS || (left && now - left > LEAVING_NS))
            return FAIL_IN(ST_TIMEOUT, path,
                           "writer %d has not written its part of the checkpoint within %.0f s",
                           rank, (double)(now - begin) * 1e-9);
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    if (!read_mark(path, digest, sizeof digest) || !hash_parse(digest, &out->digest))
        return FAIL_IN(ST_IO, path, "it contains \"%s\", which is not a digest", digest);
    train_state_name((state_writer){rank, ranks->writer.ranks}, name);
    snprintf(out->name, sizeof out->name, "%s/%.48s", FOLDER_TRAINING, name);
    if (unlink(path) != 0)
        return FAIL_IN(ST_IO, path, "%s", strerror(errno));
    return ST_OK;
}

status together_wait(const together *ranks, const char *training, const atomic_bool *leaving,
                     folder_known *out)
{
    for (int rank = 1; rank < ranks->writer.ranks; rank++)
        TRY(wait_one(ranks, training, rank, leaving, &out[rank - 1]));
    return ST_OK;
}
