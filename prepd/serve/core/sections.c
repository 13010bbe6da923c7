/* sections.c: the data sections (dispatch_state.h). What becomes of one that is open is in
 * opening.c. */
#include "prepd/serve/core/dispatch_state.h"

status section_want(dispatch *state, source *section)
{
    if (section->wanted)
        return ST_OK;
    TRY(state->outside.want_section(state->outside.shell, section));
    section->wanted = true;
    return ST_OK;
}

status section_mix(source *section)
{
    const hash128 identity = section->data->adapter->identity(section->data);
    return hash_equal(identity, dataset_contents(section->data))
               ? ST_OK
               : index_mix(section->index, identity);
}

void section_clear(source *section)
{
    for (int kind = 0; kind < PLAN_KINDS; kind++)
        plan_free(&section->plans[kind].plan);
    bad_samples_done(&section->bad);
    bad_samples_done(&section->damaged);
    predecessors_free(&section->build.before);
    *section = (source){.of = section->of, .name = section->name};
}
