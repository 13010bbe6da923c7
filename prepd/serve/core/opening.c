/* opening.c: what happens once the files of a data section are open, or cannot be opened. */
#include "prepd/serve/core/dispatch_state.h"

/* The files are open: makes the section ready, or begins to build its index. */
static status begin(dispatch *state, source *section)
{
    section->opened = true;
    if (!state->videos && section->data->adapter->videos &&
        section->data->adapter->videos(section->data)) {
        state->videos = true; /* workers get these TERMS before any lease with a video */
        const status st = dispatch_new_terms(state);
        if (st != ST_OK) {
            state->videos = false;
            return st;
        }
        for (worker_seat *worker = state->seats; worker; worker = worker->next)
            worker->proved = false; /* it gets no work before it has started anew */
    }
    section->ready = section->index != NULL;
    return section->ready ? ST_OK : index_build_start(section);
}

void section_opened(dispatch *state, source *section, status st)
{
    if (st == ST_OK)
        st = begin(state, section);
    if (st == ST_OK)
        return;
    const status_note why = *status_last();
    consumers_refuse(state, section, st);
    state->outside.close_section(state->outside.shell, section);
    status_set(&why);
    if (section == &state->train)
        dispatch_fail(state, st);
    else
        outside_debug(&state->outside, "held-out data: %s",
                      status_text()); /* who waited was told */
}
