/* SPDX-License-Identifier: Apache-2.0 */
/* save_ranks.c: see save_ranks.h. Marks are small files that appear by a rename, so one that is
 * seen is whole. */
#include "trainer/checkpoint/save/save_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/parallel/comm/comm.h"

enum { POLL_NS = 50000000 };
/* How long the caches of a network file system may hide a new file. */
static const int64_t SHOWN_NS = 15 * (int64_t)1000000000;

save_ranks save_ranks_of(const params *registry, rank_link *link)
{
    const mesh *ranks = registry->mesh;
    if (!ranks || ranks->layout.world == 1)
        return (save_ranks){.writer = {0, 1}, .writes = true, .first = true};
    const comm *whole = mesh_comm(ranks, MESH_WHOLE);
    return (save_ranks){.mesh = ranks,
                        .link = link,
                        .writer = {ranks->place.pipeline * whole->size + whole->rank,
                                   (int)ranks->layout.pipeline * whole->size},
                        .writes = ranks->place.replicate == 0,
                        .first = ranks->rank == 0};
}

status save_barrier(const save_ranks *ranks, status mine, int64_t step)
{
    if (!ranks->mesh)
        return mine;
    return comm_agree(mesh_comm(ranks->mesh, MESH_WORLD), (comm_at){"settle checkpoint", -1}, mine,
                      step);
}

/* Looks for a file for a while, since a network file system may show a new one late. */
static status wait_for_file(const char *path, const char *folder)
{
    for (int64_t begin = clock_ns(); access(path, F_OK) != 0;) {
        if (clock_ns() - begin > SHOWN_NS)
            return FAIL_IN(ST_CONFIG, folder,
                           "this rank does not see a file that rank 0 has just written there: all "
                           "ranks write their checkpoints into one folder, so job.dump_folder "
                           "must be on a file system that all machines share");
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return ST_OK;
}

status save_check_shared_folder(const save_ranks *ranks, const char *folder, status mine)
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
    TRY(save_barrier(ranks, mine, 0)); /* the file has been written */
    status st = save_barrier(ranks, wait_for_file(path, folder), 0);
    if (ranks->first)
        unlink(path);
    return st;
}

status save_broadcast(const save_ranks *ranks, int32_t *inout)
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

static status own_path(const save_ranks *ranks, const char *training, char out[STATUS_PATH_MAX])
{
    char name[64];
    train_state_name(ranks->writer, name);
    return hf_path(out, training, name);
}

status save_own_digest(const save_ranks *ranks, const char *training, char out[HASH_TEXT])
{
    char path[STATUS_PATH_MAX];
    hash128 digest;
    TRY(own_path(ranks, training, path));
    TRY(hash_file(path, &digest));
    hash_print(digest, out);
    return ST_OK;
}

void save_remove_own(const save_ranks *ranks, const char *training)
{
    char path[STATUS_PATH_MAX];
    if (own_path(ranks, training, path) == ST_OK)
        unlink(path);
}

status save_leave_mark(const save_ranks *ranks, const char *training, save_mark mark,
                       const char *text)
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

status save_find_mark(const save_ranks *ranks, const char *training, int writer,
                      save_mark *out_mark, char *out, size_t size, folder_known *known)
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
void save_post_mark(const save_ranks *ranks, int64_t save, save_mark mark, const char *text)
{
    char note[RANK_LINK_NOTE_MAX];
    snprintf(note, sizeof note, "%" PRId64 " %d %d %s", save, ranks->writer.rank, (int)mark, text);
    rank_link_tell(ranks->link, note);
}

bool save_posted_mark(const save_ranks *ranks, int64_t save, int writer, save_mark *out_mark,
                      char *out, size_t size)
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

status save_remove_mark(const char *training, int writer)
{
    char path[STATUS_PATH_MAX];
    TRY(mark_path(path, training, writer, MARK_DONE));
    if (unlink(path) != 0)
        return FAIL_IN(ST_IO, path, "%s", strerror(errno));
    return ST_OK;
}

/* ---- bad samples: the ranks gather how many ids each has to add, and then the ids in pieces of
 * one size ---- */

enum { PIECE = 512 }; /* ids of a rank in a round */
static const comm_at AT = {"unite bad samples", -1};

/* Adds the ids of one round: those of each rank which are not the padding at its end. */
static status add_round(const comm *group, const int64_t *left, const int64_t *pieces,
                        bad_samples *inout)
{
    for (int rank = 0; rank < group->size; rank++)
        for (int64_t i = 0; i < PIECE && i < left[rank]; i++)
            TRY(bad_samples_add(inout, pieces[rank * PIECE + i], NULL, NULL));
    return ST_OK;
}

/* left [ranks]: how many ids of each rank are still to come. */
static status gather_ids(const comm *group, const bad_samples *news, int64_t *left,
                         bad_samples *inout)
{
    int64_t most = 0, own[PIECE];
    status st = ST_OK;
    int64_t *pieces = (int64_t *)malloc((size_t)group->size * sizeof own);
    st = comm_agree(group, AT, pieces ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for bad samples"), 0);
    for (int rank = 0; rank < group->size; rank++)
        most = left[rank] > most ? left[rank] : most;
    for (int64_t first = 0; st == ST_OK && first < most; first += PIECE) {
        const int64_t count = news->n - first;
        memset(own, 0, sizeof own);
        if (count > 0)
            memcpy(own, news->id + first, (size_t)(count < PIECE ? count : PIECE) * sizeof *own);
        st = comm_host_all_gather(group, AT, own, pieces, sizeof own);
        if (st == ST_OK)
            st = add_round(group, left, pieces, inout);
        for (int rank = 0; rank < group->size; rank++)
            left[rank] -= PIECE;
    }
    free(pieces);
    return st;
}

/* The ids of `known` that are not in `all`. */
static status find_news(const bad_samples *known, const bad_samples *all, bad_samples *out)
{
    int64_t at = 0;
    for (int64_t i = 0; i < known->n; i++) {
        while (at < all->n && all->id[at] < known->id[i])
            at++;
        if (at == all->n || all->id[at] != known->id[i])
            TRY(bad_samples_add(out, known->id[i], NULL, NULL));
    }
    return ST_OK;
}

status save_unite_bad_samples(const comm *all, const bad_samples *known, bad_samples *inout_all)
{
    bad_samples news = {0};
    int64_t *left = (int64_t *)calloc((size_t)all->size, sizeof *left);
    status st = left ? find_news(known, inout_all, &news)
                     : FAIL(ST_NO_MEMORY, "no memory for the lists of %d ranks", all->size);
    st = comm_agree(all, AT, st, 0);
    if (st == ST_OK)
        st = comm_host_all_gather(all, AT, &news.n, left, sizeof *left);
    for (int rank = 0; st == ST_OK && rank < all->size; rank++)
        if (left[rank] > 0) {
            st = gather_ids(all, &news, left, inout_all);
            break;
        }
    if (st == ST_OK && known->index[0])
        memcpy(inout_all->index, known->index, sizeof known->index);
    bad_samples_done(&news);
    free(left);
    return st;
}
