/* SPDX-License-Identifier: Apache-2.0 */
/* save_core.c: see save_core.h. */
#include "trainer/checkpoint/save/save_core.h"

#include <errno.h>
#include <stdio.h>

/* ---- the commit ---- */

static commit_step end_with(commit_core *core, status how)
{
    core->code = how;
    return COMMIT_END;
}

/* The step after the last one. */
static commit_step choose_next(commit_core *core, status how, bool absent)
{
    switch (core->step) {
    case COMMIT_CLEAR_TRASH:
        return how == ST_OK ? COMMIT_EXCHANGE : end_with(core, how);
    case COMMIT_EXCHANGE:
        return how == ST_OK ? COMMIT_TRASH_OLD : COMMIT_SET_ASIDE;
    case COMMIT_TRASH_OLD:
        return how == ST_OK ? COMMIT_SYNC : end_with(core, how);
    case COMMIT_SET_ASIDE:
        core->replaces = how == ST_OK;
        return how == ST_OK || absent ? COMMIT_PLACE : end_with(core, how);
    case COMMIT_PLACE:
        if (how == ST_OK)
            return COMMIT_SYNC;
        core->code = how;
        core->why = *status_last();
        return core->replaces ? COMMIT_PUT_BACK : COMMIT_END;
    case COMMIT_PUT_BACK:
        status_set(&core->why); /* why it could not be placed */
        return COMMIT_END;
    case COMMIT_SYNC:
        return how == ST_OK ? COMMIT_DROP_OLD : end_with(core, how);
    default: /* the new one is in place, and the next run deletes what is left */
        return end_with(core, ST_OK);
    }
}

commit_step commit_core_next(commit_core *core, status how, bool absent)
{
    core->step = core->begun ? choose_next(core, how, absent) : COMMIT_CLEAR_TRASH;
    core->begun = true;
    return core->step;
}

/* ---- the save ---- */

/* MOST_NS: the longest that a rank may take to write its part. LEAVING_NS: how long the first rank
 * still waits when the run ends; the others write at the same time, so they are about done. */
static const int64_t MOST_NS = 3600 * INT64_C(1000000000);
static const int64_t LEAVING_NS = 30 * INT64_C(1000000000);
static const char full_remedy[] =
    "; make room there, or keep fewer checkpoints (checkpoint.keep_latest_k)";

bool save_was_full(const status_note *why)
{
    return (why->code == ST_IO || why->code == ST_CANT_CREATE) &&
           (why->os_error == ENOSPC || why->os_error == EDQUOT);
}

void save_core_begin(save_core *out, int rank, int writer, int writers)
{
    *out = (save_core){.rank = rank, .writer = writer, .writers = writers, .first = rank == 0};
}

static save_action end_save(const save_core *core)
{
    if (core->code != ST_OK)
        status_set(&core->why);
    return (save_action){.kind = SAVE_END, .code = core->code};
}

/* Keeps the last note as the cause. */
static void keep_cause(save_core *core, status code)
{
    core->code = code;
    core->why = *status_last();
}

/* ---- the ranks but the first ---- */

/* Leaves this rank's failure, as a mark or over the link. */
static save_action mark_failure(save_core *core, save_kind by)
{
    status_set(&core->why);
    snprintf(core->text, sizeof core->text, "rank %d: %s", core->rank, status_text());
    return (save_action){.kind = by,
                         .mark = save_was_full(&core->why) ? MARK_FULL : MARK_FAILED,
                         .text = core->text};
}

/* What follows in this rank's part. */
static save_action next_of_part(save_core *core, const save_answer *answer)
{
    if (core->last == SAVE_POST || (core->last == SAVE_MARK && answer->code == ST_OK))
        return end_save(core);
    if (core->last == SAVE_MARK) {
        if (core->code == ST_OK)
            keep_cause(core, answer->code);
        return mark_failure(core, SAVE_POST);
    }
    if (core->last == SAVE_REMOVE_OWN)
        return mark_failure(core, SAVE_MARK);
    if (answer->code != ST_OK) {
        keep_cause(core, answer->code);
        return (save_action){.kind = SAVE_REMOVE_OWN};
    }
    if (core->last == SAVE_FILL)
        return (save_action){.kind = SAVE_DIGEST};
    snprintf(core->text, sizeof core->text, "%s", answer->text);
    return (save_action){.kind = SAVE_MARK, .mark = MARK_DONE, .text = core->text};
}

/* ---- the first rank ---- */

static save_action fail_save(save_core *core, status code)
{
    keep_cause(core, code);
    return (save_action){.kind = SAVE_DISCARD};
}

static save_action next_commit(save_core *core, status how, bool absent)
{
    const commit_step step = commit_core_next(&core->commit, how, absent);
    if (step != COMMIT_END)
        return (save_action){.kind = SAVE_COMMIT, .commit = step};
    return core->commit.code == ST_OK ? (save_action){.kind = SAVE_PRUNE}
                                      : fail_save(core, core->commit.code);
}

/* Waits for the next writer, or seals. */
static save_action await_next(save_core *core, const save_answer *answer)
{
    core->waits_for++;
    core->since_ns = answer->now_ns;
    core->left_ns = 0;
    if (core->waits_for < core->writers)
        return (save_action){.kind = SAVE_LOOK, .writer = core->waits_for};
    return (save_action){.kind = SAVE_SEAL};
}

/* After a look for a mark. */
static save_action after_look(save_core *core, const save_answer *answer)
{
    const int64_t now = answer->now_ns;
    if (answer->mark == MARK_DONE)
        return (save_action){.kind = SAVE_UNMARK, .writer = core->waits_for};
    if (answer->mark != MARK_NONE) {
        errno = answer->mark == MARK_FULL ? ENOSPC : 0; /* the note carries the other's error */
        return fail_save(
            core, FAIL(ST_IO, "%s%s", answer->text, answer->mark == MARK_FULL ? full_remedy : ""));
    }
    if (answer->leaving && !core->left_ns)
        core->left_ns = now;
    if (now - core->since_ns > MOST_NS || (core->left_ns && now - core->left_ns > LEAVING_NS))
        return fail_save(core,
                         FAIL_IN(ST_TIMEOUT, answer->text,
                                 "writer %d has not written its part of the checkpoint within "
                                 "%.0f s",
                                 core->waits_for, (double)(now - core->since_ns) * 1e-9));
    return (save_action){.kind = SAVE_NAP};
}

/* After a failure: a disk that was full gets room. A rank that writes alone then tries again;
 * otherwise the room is for the next save, since the other ranks are done with this one. */
static save_action next_of_failure(save_core *core, const save_answer *answer)
{
    if (core->last == SAVE_DISCARD && save_was_full(&core->why) && !core->again)
        return (save_action){.kind = SAVE_MAKE_ROOM};
    if (core->last == SAVE_MAKE_ROOM && answer->gone && core->writers == 1)
        return (save_action){.kind = SAVE_MAKE_FOLDER};
    if (core->last != SAVE_MAKE_FOLDER || answer->code != ST_OK)
        return end_save(core);
    core->again = true;
    core->code = ST_OK;
    core->waits_for = 0;
    core->commit = (commit_core){0};
    return (save_action){.kind = SAVE_FILL};
}

static save_action next_of_first(save_core *core, const save_answer *answer)
{
    switch (core->last) {
    case SAVE_FILL:
    case SAVE_UNMARK:
        return answer->code == ST_OK ? await_next(core, answer) : fail_save(core, answer->code);
    case SAVE_LOOK:
        return answer->code == ST_OK ? after_look(core, answer) : fail_save(core, answer->code);
    case SAVE_NAP:
        return (save_action){.kind = SAVE_LOOK, .writer = core->waits_for};
    case SAVE_SEAL:
        return answer->code == ST_OK ? next_commit(core, ST_OK, false)
                                     : fail_save(core, answer->code);
    case SAVE_COMMIT:
        return next_commit(core, answer->code, answer->absent);
    case SAVE_PRUNE:
        return end_save(core);
    default:
        return next_of_failure(core, answer);
    }
}

save_action save_core_next(save_core *core, const save_answer *answer)
{
    save_action next = {.kind = SAVE_FILL};
    if (core->begun)
        next = core->first ? next_of_first(core, answer) : next_of_part(core, answer);
    core->begun = true;
    core->last = next.kind;
    return next;
}
