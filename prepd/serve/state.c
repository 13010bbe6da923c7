/* state.c: how a run ends. Any file of serve/ may end it, and the loop notices. */
#include "prepd/serve/dispatch_state.h"

void dispatch_fail(dispatch *d, status st)
{
    if (d->stopping && d->outcome != ST_OK)
        return; /* the first cause counts */
    d->outcome = st;
    d->cause = *status_last();
    d->stopping = true;
}
