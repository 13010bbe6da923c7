/* SPDX-License-Identifier: Apache-2.0 */
/* writer_find.c: finds the checkpoint that a run resumes from, and sets the ones after it aside
 * (checkpoint_writer_find and checkpoint_writer_clear_after of writer.h). Rank 0 lists the steps;
 * then all ranks check one checkpoint after the other, newest first, each its share of the bytes,
 * and agree on the outcome. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/program/log.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/save/writer.h"
#include "trainer/parallel/comm/comm.h"

/* Checks this rank's share of a checkpoint and reads its state. */
static status read_own(const char *folder, int64_t step, const comm *all,
                       char path[STATUS_PATH_MAX], progress *out)
{
    char training[STATUS_PATH_MAX];
    TRY(folder_step_path(path, folder, step, NULL));
    TRY(folder_check(path, all->rank, all->size));
    TRY(hf_path(training, path, FOLDER_TRAINING));
    progress state = {0};
    TRY(progress_read(training, &state));
    status st = progress_check(&state, training);
    if (st == ST_OK)
        *out = state;
    else
        progress_done(&state);
    return st;
}

/* The outcome is the same on all ranks: the checkpoint is whole for all of them or for none. */
static status read_step(const char *folder, int64_t step, const comm *all, rank_link *watch,
                        char path[STATUS_PATH_MAX], progress *out)
{
    const comm_at at = {"check a checkpoint", -1};
    rank_link_waits(watch, "a checkpoint's files");
    status mine = read_own(folder, step, all, path, out);
    rank_link_waits(watch, NULL);
    status st = comm_agree(all, at, mine, step);
    if (mine == ST_OK && st != ST_OK)
        progress_done(out);
    return st;
}

/* *out: the steps of all checkpoints as rank 0 sees them, in heap memory. */
static status list_steps(const char *folder, const comm *all, int64_t **out, int64_t *out_n)
{
    const comm_at at = {"list checkpoints", -1};
    int64_t *step = NULL, count = 0;
    status st = comm_agree(all, at, folder_steps(folder, &step, &count), 0);
    if (st == ST_OK)
        st = comm_host_broadcast(all, at, &count, sizeof count, 0);
    if (st == ST_OK && all->rank > 0) {
        free(step);
        step = calloc((size_t)count + 1, sizeof *step);
        st = step ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for a list of checkpoints");
    }
    if (st == ST_OK && count > 0)
        st = comm_host_broadcast(all, at, step, count * (int64_t)sizeof *step, 0);
    if (st != ST_OK)
        free(step);
    *out = st == ST_OK ? step : NULL;
    *out_n = count;
    return st;
}

status checkpoint_writer_newest(const char *folder, const comm *all, int64_t *out)
{
    int64_t *step = NULL, count = 0;
    TRY(list_steps(folder, all, &step, &count));
    *out = count > 0 ? step[count - 1] : 0;
    free(step);
    return ST_OK;
}

status checkpoint_writer_find(const char *folder, int64_t load_step, const comm *all,
                              rank_link *watch, char out_path[STATUS_PATH_MAX], progress *out,
                              bool *out_found)
{
    const comm alone = comm_alone("checkpoint");
    int64_t *step = NULL, count = 0;
    all = all ? all : &alone;
    *out_found = false;
    if (load_step > 0) {
        TRY(read_step(folder, load_step, all, watch, out_path, out));
        *out_found = true;
        return ST_OK;
    }
    if (load_step == 0)
        return ST_OK;
    TRY(list_steps(folder, all, &step, &count));
    status st = ST_OK;
    for (int64_t i = count - 1; i >= 0 && st == ST_OK && !*out_found; i--) {
        st = read_step(folder, step[i], all, watch, out_path, out);
        *out_found = st == ST_OK;
        if (st == ST_BAD_INPUT || st == ST_NO_INPUT) { /* a disk that fails is not damage */
            log_warn("the checkpoint of step %" PRId64 " is passed over: %s", step[i],
                     status_text());
            st = ST_OK;
        }
    }
    free(step);
    if (st == ST_OK && count > 0 && !*out_found)
        return FAIL_IN(ST_BAD_INPUT, folder,
                       "none of the %" PRId64
                       " checkpoints is whole; start over with checkpoint.load_step 0",
                       count);
    return st;
}

static status set_aside(const char *folder, int64_t step)
{
    char from[STATUS_PATH_MAX], to[STATUS_PATH_MAX], name[64];
    struct stat about;
    int length = snprintf(name, sizeof name, "set-aside-step-%" PRId64, step);
    TRY(folder_step_path(from, folder, step, NULL));
    TRY(hf_path(to, folder, name));
    for (int i = 2; lstat(to, &about) == 0; i++) {
        snprintf(name + length, sizeof name - (size_t)length, ".%d", i);
        TRY(hf_path(to, folder, name));
    }
    if (rename(from, to) != 0)
        return FAIL_IN(ST_IO, from, "rename: %s", strerror(errno));
    log_warn("the checkpoint of step %" PRId64
             " is set aside as %s, since the run resumes from an earlier step",
             step, to);
    return ST_OK;
}

status checkpoint_writer_clear_after(const char *folder, int64_t after)
{
    int64_t *step = NULL, count = 0;
    TRY(folder_tidy(folder));
    TRY(folder_steps(folder, &step, &count));
    status st = ST_OK;
    for (int64_t i = 0; i < count && st == ST_OK; i++)
        if (step[i] > after)
            st = set_aside(folder, step[i]);
    free(step);
    return st;
}
