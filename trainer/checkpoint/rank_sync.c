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
#include "trainer/parallel/agree.h"

enum { POLL_NS = 50000000 };
/* How long the caches of a network file system may hide a new file. */
static const int64_t SEE_NS = 15 * (int64_t)1000000000;

together together_of(const params *registry, rank_link *link)
{
    const mesh *ranks = registry->mesh;
    if (!ranks || ranks->layout.world == 1)
        return (together){.writer = {0, 1}, .writes = true, .first = true};
    const comm *whole = mesh_comm(ranks, MESH_WHOLE);
    return (together){.mesh = ranks,
                      .link = link,
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

static const char *const mark_kind[] = {
    [MARK_DONE] = "done", [MARK_FAILED] = "failed", [MARK_FULL] = "full"};

static status mark_path(char out[STATUS_PATH_MAX], const char *training, int rank, save_mark mark)
{
    char name[64];
    snprintf(name, sizeof name, ".rank-%d.%s", rank, mark_kind[mark]);
    return hf_path(out, training, name);
}

static status own_path(const together *ranks, const char *training, char out[STATUS_PATH_MAX])
{
    char name[64];
    train_state_name(ranks->writer, name);
    return hf_path(out, training, name);
}

status together_digest(const together *ranks, const char *training, char out[HASH_TEXT])
{
    char path[STATUS_PATH_MAX];
    hash128 digest;
    TRY(own_path(ranks, training, path));
    TRY(hash_file(path, &digest));
    hash_print(digest, out);
    return ST_OK;
}

void together_remove_own(const together *ranks, const char *training)
{
    char path[STATUS_PATH_MAX];
    if (own_path(ranks, training, path) == ST_OK)
        unlink(path);
}

status together_mark(const together *ranks, const char *training, save_mark mark, const char *text)
{
    char name[64];
    snprintf(name, sizeof name, ".rank-%d.%s", ranks->writer.rank, mark_kind[mark]);
    return hf_write_text(training, name, text, strlen(text));
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

status together_look(const together *ranks, const char *training, int writer, save_mark *out_mark,
                     char *out, size_t size, folder_known *known)
{
    static const save_mark looked_for[] = {MARK_FULL, MARK_FAILED};
    char path[STATUS_PATH_MAX], done[STATUS_PATH_MAX], name[64];
    TRY(mark_path(done, training, writer, MARK_DONE));
    if (read_mark(done, out, size)) {
        if (!hash_parse(out, &known->digest))
            return FAIL_IN(ST_IO, done, "it contains \"%s\", which is not a digest", out);
        train_state_name((state_writer){writer, ranks->writer.ranks}, name);
        snprintf(known->name, sizeof known->name, "%s/%.48s", FOLDER_TRAINING, name);
        *out_mark = MARK_DONE;
        return ST_OK;
    }
    for (size_t i = 0; i < sizeof looked_for / sizeof *looked_for; i++) {
        TRY(mark_path(path, training, writer, looked_for[i]));
        if (read_mark(path, out, size)) {
            *out_mark = looked_for[i];
            return ST_OK;
        }
    }
    snprintf(out, size, "%s", done);
    *out_mark = MARK_NONE;
    return ST_OK;
}

/* A note has the numbers of save, writer and mark before the text. */
void together_tell(const together *ranks, int64_t save, save_mark mark, const char *text)
{
    char note[RANK_LINK_NOTE_MAX];
    snprintf(note, sizeof note, "%" PRId64 " %d %d %s", save, ranks->writer.rank, (int)mark, text);
    rank_link_tell(ranks->link, note);
}

bool together_told(const together *ranks, int64_t save, int writer, save_mark *out_mark, char *out,
                   size_t size)
{
    char note[RANK_LINK_NOTE_MAX], wanted[64];
    const int length = snprintf(wanted, sizeof wanted, "%" PRId64 " %d ", save, writer);
    for (int rank = 1; ranks->link && rank < ranks->mesh->layout.world; rank++) {
        if (!rank_link_told(ranks->link, rank, note) ||
            strncmp(note, wanted, (size_t)length) != 0 || strlen(note) < (size_t)length + 2)
            continue;
        *out_mark = note[length] == '0' + (int)MARK_FULL ? MARK_FULL : MARK_FAILED;
        snprintf(out, size, "%s", note + length + 2);
        return true;
    }
    return false;
}

status together_unmark(const char *training, int writer)
{
    char path[STATUS_PATH_MAX];
    TRY(mark_path(path, training, writer, MARK_DONE));
    if (unlink(path) != 0)
        return FAIL_IN(ST_IO, path, "%s", strerror(errno));
    return ST_OK;
}
