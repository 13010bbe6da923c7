/* optim_lists.c: the lists of tensors that sum_squares and adamw go over: by group, or, where units
 * are updated in backward, by unit and group. */
#include <stdlib.h>

#include "trainer/optim/optim_tensor.h"
#include "trainer/optim/optimizer_parts.h"

void optimizer_list_group(optimizer *optim, const conf *options, int group, int unit,
                          optim_tensor *host, optim_list *out)
{
    const params *registry = optim->params;
    optim_list run = {.tensor = optim->tensors + optim->all.n_tensors,
                      .first_chunk = optim->all.n_chunks};
    for (int64_t i = 0; i < registry->count; i++) {
        const param *entry = &registry->list[i];
        if ((int)entry->group != group || (unit >= 0 && entry->unit != unit) || entry->frozen ||
            entry->own_n == 0)
            continue;
        optim_tensor *listed = &host[optim->all.n_tensors++];
        *listed = optim_tensor_of(options, entry, optim->all.n_chunks);
        if (optim->states)
            host_states_move(optim->states, entry, listed);
        optim->all.n_chunks += (entry->own_n + OPTIM_CHUNK - 1) / OPTIM_CHUNK;
        run.n_tensors++;
        run.coded |= entry->coded || entry->act_master;
    }
    run.n_chunks = optim->all.n_chunks - run.first_chunk;
    optim->all.coded |= run.coded;
    *out = run;
}

status optimizer_list_units(optimizer *optim, const conf *options, optim_tensor *host)
{
    const params *registry = optim->params;
    unit_updates *units = &optim->units;
    units->lowest = 0;
    units->highest = -1; /* a pipeline stage may have nothing that is trained */
    for (int64_t i = 0; i < registry->n_spans; i++) { /* in rising order of unit */
        if (!registry->spans[i].trained)
            continue;
        units->lowest = units->highest < 0 ? registry->spans[i].unit : units->lowest;
        units->highest = registry->spans[i].unit;
    }
    units->unit = calloc((size_t)(units->highest + 2), sizeof *units->unit);
    if (!units->unit)
        return FAIL(ST_NO_MEMORY, "optimizer: out of memory");
    for (int j = units->highest; j >= units->lowest; j--) {
        unit_lists *own = &units->unit[j];
        own->all = (optim_list){.tensor = optim->tensors + optim->all.n_tensors,
                                .first_chunk = optim->all.n_chunks};
        for (int k = 0; k < GROUP_COUNT; k++) {
            optimizer_list_group(optim, options, k, j, host, &own->group[k]);
            own->all.n_tensors += own->group[k].n_tensors;
            own->all.n_chunks += own->group[k].n_chunks;
            own->all.coded |= own->group[k].coded;
        }
    }
    return ST_OK;
}
