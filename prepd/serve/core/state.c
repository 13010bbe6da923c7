/* state.c: how a run ends. Any file of serve/ may end it, and the loop notices. */
#include "prepd/serve/core/dispatch_state.h"

void dispatch_fail(dispatch *state, status st)
{
    if (state->stopping && state->outcome != ST_OK)
        return; /* the first cause counts */
    state->outcome = st;
    state->cause = *status_last();
    state->stopping = true;
}
