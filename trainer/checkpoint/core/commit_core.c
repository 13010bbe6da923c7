/* commit_core.c: see commit_core.h. */
#include "trainer/checkpoint/core/commit_core.h"

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
